"""Functions of DataFrames: `changes`, `table_changes`, `snapshot`, `relation_catalog`."""
