"""The rows of one relation to typed columns."""
