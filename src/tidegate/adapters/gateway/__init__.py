"""The embedded gateway as a door: see door.py."""
