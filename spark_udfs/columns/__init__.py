"""Column functions: `parse_pgoutput` and `from_pgoutput`."""
