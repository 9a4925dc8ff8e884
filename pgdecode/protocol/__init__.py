"""The pgoutput wire format: messages, LSNs, limits and errors. Uses only the standard library."""
