"""Agreements: what a service promises, and whether it was kept. Pure."""
