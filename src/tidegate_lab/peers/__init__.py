"""The systems in the comparison: how to start each server, and how to drive it at its best."""
