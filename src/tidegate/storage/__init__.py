"""Stores: PostgreSQL, one or several servers or an embedded one, and an in-memory twin."""
