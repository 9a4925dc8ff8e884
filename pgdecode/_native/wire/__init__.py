"""One message: its plan, and the walk over its fields."""
