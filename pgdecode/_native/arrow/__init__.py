"""Arrow arrays read in place, and builders of Arrow columns."""
