"""Other decoders beside pgdecode: `python -m benchmarks.peers` measures them, after `make peers`."""
