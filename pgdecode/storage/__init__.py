"""Where files are: local paths, and objects in S3, GCS and Azure. Errors of writing name the target and the cause."""
