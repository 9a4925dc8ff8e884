"""PostgreSQL's type system: the table of types, a parser of type names, encodings and session settings."""
