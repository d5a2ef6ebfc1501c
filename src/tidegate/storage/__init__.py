"""Segments in PostgreSQL, the embedded server, and an in-memory twin."""
