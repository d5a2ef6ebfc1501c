"""Simulation: the real laws and control loops against a simulated plant in virtual time."""
