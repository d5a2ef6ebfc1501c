"""The application with all command groups; each group is one module.

This module is imported for help and for unknown commands. A known command imports only its own
module (`COMMANDS`). Command modules delay heavy imports until a command runs.
"""

from __future__ import annotations

from importlib import import_module

from tidegate.cli import COMMANDS, added_commands
from tidegate.cli.command_line import new_app, run

app = new_app()
for _place in (*COMMANDS, *(place for _, place in added_commands())):
    _module, _, _register = _place.partition(":")
    getattr(import_module(_module), _register)(app)


def run_app() -> None:
    """Run the command from the command line."""
    run(app)
