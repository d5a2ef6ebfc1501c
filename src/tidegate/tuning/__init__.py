"""Tuning experiments: step the prefetch of one consumer, fit a model, and design gains."""
