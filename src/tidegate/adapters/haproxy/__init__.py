"""Debian's HAProxy as a door: see door.py."""
