"""Sessions, the JVM, Spark's Python workers, and storage."""
