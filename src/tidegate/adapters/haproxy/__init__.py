"""Debian's HAProxy as a door."""
