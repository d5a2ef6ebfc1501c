"""Faults made on purpose, under load, on real processes; the checker says what they broke."""
