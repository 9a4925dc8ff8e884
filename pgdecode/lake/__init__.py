"""Tables in a lake that equal those of the server: apply net changes to Parquet, Delta, Iceberg and DuckDB tables."""
