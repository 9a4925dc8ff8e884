"""The wire contract of pgoutput, with the standard library alone: messages, LSNs, limits, errors."""
