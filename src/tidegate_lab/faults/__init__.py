"""Fault injection: kill real processes under load, then check the recorded histories."""
