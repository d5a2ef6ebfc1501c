"""The embedded gateway as a door."""
