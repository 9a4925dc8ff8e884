"""Conversion of Arrow types to Spark types."""
