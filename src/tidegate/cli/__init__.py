"""The `tidegate` command: settings and wiring, nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

__all__ = ["main"]


def main() -> None:
    """Import the command, and run it."""
    # While commands are imported there is nothing to clean up, and an exception from the middle of
    # an import tells nobody anything: Ctrl-C just ends it.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    run = _imported()
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


def _imported() -> Callable[[], None]:
    """What runs the command that was asked for."""
    from tidegate.cli.command_groups import module_of

    module = module_of(sys.argv[1:])
    if module is None:
        from tidegate.cli import app

        return app.main
    from importlib import import_module

    from tidegate.cli.command_line import new_app, run

    one = new_app()
    import_module(f"tidegate.cli.{module}").register(one)
    return lambda: run(one)
