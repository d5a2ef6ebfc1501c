"""The elastic queue on RabbitMQ: a consistent-hash exchange over queues that come and go."""
