"""Net changes: one row for each row that changes have touched."""
