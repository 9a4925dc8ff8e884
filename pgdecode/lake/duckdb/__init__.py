"""Tables of DuckDB and DuckLake, which are changed by SQL."""
