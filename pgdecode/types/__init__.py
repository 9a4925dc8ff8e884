"""PostgreSQL's type system: the table of types, how users write them, encodings, session settings."""
