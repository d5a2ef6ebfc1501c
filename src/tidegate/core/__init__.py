"""Nouns, ports and the error tree: what every room shares."""
