"""Engines: Tidegate's own nodes and RabbitMQ, a sensor and an actuator for each."""
