"""Live PostgreSQL servers: finding and starting one, random scenarios on it, and recording what its slots emit."""
