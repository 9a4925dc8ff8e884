"""Arrow arrays that need no native code."""
