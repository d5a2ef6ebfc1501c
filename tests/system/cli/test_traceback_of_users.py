"""An application that fails while it is imported shows its own frames, then the sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import clean_environment

SHOP = """
def priced(total):
    return total / 0


import tidegate
app = tidegate.App()
PRICE = priced(3)
"""
AGREEMENT = 'name = "shop"\nhttp = "shop"\n[metrics.response_p95]\nbreach = "1s"\n'
WORKER = ("worker", "shop:app")
HOST = ("host", "shop:app", "--agreement", "shop.toml", "--data", "data", "--port", "0")


def told_by(folder: Path, command: Sequence[str], **modules: str) -> list[str]:
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    (folder / "shop.toml").write_text(AGREEMENT)
    finished = subprocess.run(
        [sys.executable, "-m", "tidegate", *command],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 2, finished.stderr
    return finished.stderr.splitlines()


@pytest.mark.parametrize("command", [WORKER, HOST], ids=["worker", "host"])
def test_the_traceback_begins_in_the_users_file(tmp_path: Path, command: Sequence[str]) -> None:
    lines = told_by(tmp_path, command, shop=SHOP)

    assert lines[0] == "Traceback (most recent call last):"
    frames = [line for line in lines if line.startswith("  File ")]
    assert frames == [
        f'  File "{tmp_path}/shop.py", line 8, in <module>',
        f'  File "{tmp_path}/shop.py", line 3, in priced',
    ]
    assert lines[-1] == (
        "tidegate: 'shop' fails when imported: ZeroDivisionError: division by zero"
    )


def test_a_module_that_imports_another_shows_both_and_not_how_python_imports(
    tmp_path: Path,
) -> None:
    lines = told_by(tmp_path, HOST, shop="import prices\n", prices="import nowhere_at_all\n")

    assert [line for line in lines if line.startswith("  File ")] == [
        f'  File "{tmp_path}/shop.py", line 1, in <module>',
        f'  File "{tmp_path}/prices.py", line 1, in <module>',
    ]
    assert lines[-1] == (
        "tidegate: 'shop' was found, but imports 'nowhere_at_all', which is not installed"
    )


def test_what_cannot_be_parsed_shows_where(tmp_path: Path) -> None:
    lines = told_by(tmp_path, HOST, shop="app = (\n")

    assert [line for line in lines if "File" in line] == [f'  File "{tmp_path}/shop.py", line 1']
    assert lines[-1].startswith("tidegate: 'shop' fails when imported: SyntaxError: ")
