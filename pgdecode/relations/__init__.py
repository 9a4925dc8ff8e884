"""What a table looked like, and when: versions of relations, by position."""
