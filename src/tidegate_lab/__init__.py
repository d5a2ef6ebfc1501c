"""Benchmarks against other systems, the papers' experiments, and fault injection."""
