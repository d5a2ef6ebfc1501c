"""The experiments of the replicated queues paper: one queue with many clients, two replicas."""
