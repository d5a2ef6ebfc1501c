"""The `tidegate` command: settings and wiring, nothing else."""
