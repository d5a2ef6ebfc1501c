"""A sensor and an actuator for each engine, through its public door."""
