"""Machines, their slots and their providers; starts nodes, workers and HTTP applications."""
