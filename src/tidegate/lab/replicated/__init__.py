"""The experiments of the replicated queues paper: one queue under many clients, then two."""
