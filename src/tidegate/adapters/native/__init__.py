"""Tidegate's own nodes as an engine: stats in, requests out."""
