"""The rows of one relation as typed columns."""
