"""Tidegate: a message queue that measures itself."""
