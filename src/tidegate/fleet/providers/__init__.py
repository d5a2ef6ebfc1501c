"""Whoever makes machines: a process tree here, or the user's own commands."""
