"""Commands for tables in a lake."""
