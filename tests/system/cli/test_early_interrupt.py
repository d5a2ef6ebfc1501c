"""Ctrl-C while a command is still being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tidegate

# Presses Ctrl-C when a module of the commands is looked for, and goes on as if nothing happened.
_IMPATIENT = """
import os, signal, sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "tidegate.cli.serve":
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
        [sys.executable, "-c", _IMPATIENT], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "interrupted\n", "")


# A command that is interrupted while it runs text as code, as the making of a dataclass does.
_IN_TEXT = """
import sys
from tidegate.cli.command_line import new_app, run

app = new_app()

@app.command("wait")
def wait():
    exec("raise KeyboardInterrupt")

sys.argv = ["tidegate", "wait"]
run(app)
"""


def test_interrupted_while_it_makes_a_dataclass_it_ends_with_the_same_exit_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "interrupted.py").write_text(_IN_TEXT)
    ended = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert (ended.returncode, ended.stderr) == (130, "")


def test_every_public_name_is_there() -> None:
    for name in tidegate.__all__:
        assert getattr(tidegate, name) is not None
