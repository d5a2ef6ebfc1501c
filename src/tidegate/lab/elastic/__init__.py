"""The experiments of the Elastic queues paper, in virtual time and with real processes."""
