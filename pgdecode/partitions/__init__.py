"""Independent decoding of the partitions of a payload sequence."""
