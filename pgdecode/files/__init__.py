"""Reading payload files, and writing result files."""
