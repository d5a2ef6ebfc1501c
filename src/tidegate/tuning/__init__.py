"""Experiments with one consumer: its prefetch is stepped, a model is fitted, gains are designed."""
