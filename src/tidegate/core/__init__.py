"""Nouns, store interfaces and errors, which all other packages share."""
