"""Ctrl-C while a command is still being imported."""

from __future__ import annotations

import subprocess
import sys

import tidegate

# Presses Ctrl-C when a module of the commands is looked for, and goes on as if nothing happened.
_IMPATIENT = """
import os, signal, sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "tidegate.cli.serving":
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Impatient())
from tidegate.cli import main
assert not [name for name in sys.modules if name.startswith("tidegate.client")]
sys.argv = ["tidegate", "up"]
main()
"""


def test_interrupted_while_it_starts_it_ends_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _IMPATIENT], capture_output=True, text=True, check=False, timeout=30
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "interrupted\n", "")


def test_every_public_name_is_there() -> None:
    for name in tidegate.__all__:
        assert getattr(tidegate, name) is not None
