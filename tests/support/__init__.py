"""Code shared by tests: oracles, generators of payloads, captures and comparisons."""
