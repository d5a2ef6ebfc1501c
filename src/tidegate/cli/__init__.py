"""The `tidegate` command: settings and wiring, nothing else."""

from tidegate.cli.app import main

__all__ = ["main"]
