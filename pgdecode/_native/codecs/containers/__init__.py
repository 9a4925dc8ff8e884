"""Values made of values: arrays, composites, hstore, ranges and vectors."""
