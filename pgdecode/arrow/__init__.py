"""Arrow data without native code: arrays, their values as JSON, joining Parquet files."""
