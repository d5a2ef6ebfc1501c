"""Benchmarks of Tidegate, alone and beside other systems."""
