"""The changes of a batch: which transaction each belongs to, and their tuples as maps."""
