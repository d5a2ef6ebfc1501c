"""A sensor and an actuator for each engine, built on the engine's public interface."""


# Tidegate's own nodes as an engine: stats in, requests out.
