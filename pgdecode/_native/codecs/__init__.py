"""One value of a PostgreSQL type to an item of a column; a file for each type family."""
