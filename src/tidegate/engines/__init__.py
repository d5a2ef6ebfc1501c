"""A sensor and an actuator for each engine, built on the engine's public interface."""
