"""Benchmarks: what is measured, how it is checked, and what the figures mean."""
