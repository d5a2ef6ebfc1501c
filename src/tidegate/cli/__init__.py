"""The `tidegate` command: argument parsing, settings and wiring."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

__all__ = ["main"]


def main() -> None:
    """Import the requested command and run it."""
    # An import needs no cleanup, and a traceback from the middle of an import helps no user. Until
    # the imports are complete, Ctrl-C ends the process at once.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    run = _imported()
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


def _imported() -> Callable[[], None]:
    """Return a function that runs the requested command, or all commands if it is unknown."""
    from tidegate.cli.command_groups import module_of

    found = module_of(sys.argv[1:])
    if found is None:
        from tidegate.cli import app

        return app.main
    from importlib import import_module

    from tidegate.cli.command_line import new_app, run

    one = new_app()
    module, _, register = found.partition(":")
    getattr(import_module(module), register)(one)
    return lambda: run(one)
