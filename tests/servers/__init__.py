"""Live PostgreSQL servers: finding and starting one, random scenarios on it, and recording the output of its slots."""
