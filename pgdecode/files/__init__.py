"""Files of payloads in, files of results out."""
