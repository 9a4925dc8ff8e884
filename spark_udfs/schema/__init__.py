"""Arrow types as Spark's."""
