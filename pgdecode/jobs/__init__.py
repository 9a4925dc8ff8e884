"""Jobs of the local engine: what a call of `pgdecode decode` reads, decodes and commits."""
