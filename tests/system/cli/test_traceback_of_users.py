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


@pytest.mark.parametrize("command", [WORKER, HOST], ids=["worker", "host"])
def test_the_traceback_begins_in_the_users_file(tmp_path: Path, command: Sequence[str]) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop.toml").write_text(AGREEMENT)

    finished = subprocess.run(
        [sys.executable, "-m", "tidegate", *command],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 2, finished.stderr
    assert not (tmp_path / "data").exists(), "nothing was started"
    lines = finished.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    frames = [line for line in lines if line.startswith("  File ")]
    assert frames == [
        f'  File "{tmp_path}/shop.py", line 8, in <module>',
        f'  File "{tmp_path}/shop.py", line 3, in priced',
    ]
    assert lines[-1] == (
        "tidegate: 'shop' fails when imported: ZeroDivisionError: division by zero"
    )
