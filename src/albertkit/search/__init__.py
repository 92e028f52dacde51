"""Search: an index of texts with their vectors and keywords in one SQLite file, and clustering."""
