"""Loops: sense, decide by a law, act, and say why."""
