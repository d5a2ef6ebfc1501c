"""Machine providers: a process tree on this computer, or the user's own commands."""
