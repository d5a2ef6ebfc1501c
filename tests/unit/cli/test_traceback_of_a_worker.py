"""An app that fails while a worker imports it shows its own frames, then the sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine

Told = Callable[..., list[str]]


@pytest.fixture
def told(command_line: CommandLine, tmp_path: Path) -> Told:
    """What `tidegate worker shop:app` says of these modules."""

    def run(**modules: str) -> list[str]:
        for name, code in modules.items():
            (tmp_path / f"{name}.py").write_text(code)
        finished = command_line("worker", "shop:app", folder=tmp_path)
        assert finished.returncode == 2, finished.stderr
        return finished.stderr.decode().splitlines()

    return run


def test_a_module_that_imports_another_shows_both_and_not_how_python_imports(
    told: Told, tmp_path: Path
) -> None:
    lines = told(shop="import prices\n", prices="import nowhere_at_all\n")

    assert [line for line in lines if line.startswith("  File ")] == [
        f'  File "{tmp_path}/shop.py", line 1, in <module>',
        f'  File "{tmp_path}/prices.py", line 1, in <module>',
    ]
    assert lines[-1] == (
        "tidegate: 'shop' was found, but imports 'nowhere_at_all', which is not installed"
    )


def test_syntax_error_of_an_application_shows_file_and_line(told: Told, tmp_path: Path) -> None:
    lines = told(shop="app = (\n")

    assert [line for line in lines if "File" in line] == [f'  File "{tmp_path}/shop.py", line 1']
    assert lines[-1].startswith("tidegate: 'shop' fails when imported: SyntaxError: ")


def test_a_script_that_ends_its_importer_is_told_so(told: Told) -> None:
    lines = told(shop="import sys\nsys.exit(3)\n")

    assert lines[-1] == "tidegate: 'shop' fails when imported: SystemExit: 3"
