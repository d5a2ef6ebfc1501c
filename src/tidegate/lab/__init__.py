"""Benchmarks against peers, the papers' experiments, fault injection."""
