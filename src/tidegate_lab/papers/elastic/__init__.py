"""The experiments of the elastic queues paper, with real processes and in virtual time."""
