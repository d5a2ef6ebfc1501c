"""Prefetch control, ours beside the paper's."""
