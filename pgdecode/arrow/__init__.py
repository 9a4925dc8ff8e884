"""Arrow arrays that are built without native code."""
