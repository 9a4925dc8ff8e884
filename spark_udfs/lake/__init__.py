"""Tables of Delta and Iceberg that Spark writes: net changes are merged into them."""
