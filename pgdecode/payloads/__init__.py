"""What callers hand over as payloads, and how many threads take them."""
