"""Machines, their slots and their providers; starts nodes, workers and HTTP applications."""


# Machine providers: a process tree on this computer, or the user's own commands.
