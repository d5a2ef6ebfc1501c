"""Elastic queues on RabbitMQ: a consistent-hash exchange over a varying number of queues."""
