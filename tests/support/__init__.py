"""What several tests share: oracles, generators of payloads, captures and comparisons."""
