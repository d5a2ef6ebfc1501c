"""What `make check` leaves out is found in the code, and every test has its stage."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backing import ExternalPostgres, MemoryBacking
from parts import Part
from process_starters import ProcessStarters
from scheduling import LONG_S
from stages import STAGES, Stage
from tidegate.lab.faults.kills import run_kills
from tidegate.node.server import Node
from tidegate.storage.embedded import EmbeddedPostgres

TESTS = Path(__file__).parents[1]


def plain() -> Node:
    return Node(MemoryBacking().store())


def starts() -> None:
    subprocess.run(["true"], check=True)


async def starts_inside() -> None:
    async def inside() -> None:
        await asyncio.create_subprocess_exec("true")

    await inside()


@contextmanager
def starts_by_others() -> Iterator[None]:
    starts()
    yield


class Starter:
    @staticmethod
    def start() -> None:
        starts()


def goes_round() -> None:
    comes_back()


def comes_back() -> None:
    goes_round()
    Starter()


def test_who_starts_a_process_is_found_behind_names_classes_and_wrappers() -> None:
    found = ProcessStarters()

    for starter in (starts, starts_inside, starts_by_others, Starter, goes_round, comes_back):
        assert found.includes(starter), starter
    for starter in (ExternalPostgres, EmbeddedPostgres, run_kills):
        assert found.includes(starter), starter
    for harmless in (plain, Node, MemoryBacking, Path, len, "subprocess", None):
        assert not found.includes(harmless), harmless


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("def test_it(): ...", ["quick", "crowd"]),
        ("@pytest.mark.faults\ndef test_it(): ...", ["quick", "crowd", "kills"]),
        ("pytestmark = pytest.mark.alone", ["crowd", "alone"]),
        ("@pytest.mark.paced\ndef test_it(): ...", ["quick", "crowd", "paced"]),
        ("pytestmark = [pytest.mark.peers, pytest.mark.timeout(9)]", ["crowd"]),
        ("@pytest.mark.slow\ndef test_it(): ...", ["quick", "crowd"]),
        ("from pyspark.sql import Row", ["crowd"]),
    ],
)
def test_a_file_is_read_for_the_stages_that_it_may_hold_tests_of(
    tmp_path: Path, text: str, stages: list[str]
) -> None:
    file = tmp_path / "rooms" / "test_it.py"
    file.parent.mkdir()
    file.write_text(text)

    for path in (file, file.parent):
        assert [name for name in STAGES if Stage(name).may_be_in(path)] == stages


def test_each_file_is_in_one_part_and_parts_are_as_large_as_can_be(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{number}.py" for number in range(7)]
    for number, file in enumerate(files):
        file.write_bytes(bytes(100 + number))

    parts = [Part(f"{number}/3", files) for number in (1, 2, 3)]

    assert sorted(file for part in parts for file in part.files) == files
    assert sorted(len(part.files) for part in parts) == [2, 2, 3]
    assert [part.may_hold(files[0]) for part in parts].count(True) == 1
    assert all(part.may_hold(tmp_path) for part in parts)
    for written in ("4/3", "0/3", "1", "1/3/3"):
        with pytest.raises(ValueError, match="a part is written as 1/3"):
            Part(written, files)


def test_every_file_that_is_known_to_be_long_is_there() -> None:
    assert [file for file in LONG_S if not (TESTS.parent / file).is_file()] == []


def test_no_two_files_have_one_name() -> None:
    """They are imported by it: the second would not be run."""
    files = [
        file for file in TESTS.rglob("*.py") if file.name not in ("conftest.py", "__init__.py")
    ]
    names = Counter(file.name for file in files)
    assert [str(file) for file in files if names[file.name] > 1] == []
