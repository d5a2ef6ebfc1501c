"""Words that cannot be meant: one sentence before anything is begun, and never a traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from command_line import CommandLine

from tidegate import demo
from tidegate.cli.command_line import NotWritten
from tidegate.cli.options import queue_key
from tidegate.cli.output import Output
from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.demo import evidence, runner
from tidegate.demo import runner as stage
from tidegate.demo.scenario import demo_scenario
from tidegate.fleet.providers import EXIT_REASON_VARIABLE


def test_a_queue_is_named_or_numbered() -> None:
    assert [queue_key(text) for text in ("orders", "#7", "#9223372036854775807")] == [
        "orders",
        7,
        2**63 - 1,
    ]
    # What has no number behind its # is a name.
    assert [queue_key(text) for text in ("#", "#a", "orders#1")] == ["#", "#a", "orders#1"]


@pytest.mark.parametrize("digits", ["²", "٣", str(2**63), "9" * 23, "0" * 5000])
def test_a_number_that_no_queue_can_have_is_refused(digits: str) -> None:
    with pytest.raises(InvalidValue, match="is no id of a queue") as refusal:
        queue_key(f"#{digits}")
    assert len(str(refusal.value)) < 100


@pytest.mark.parametrize(
    "option",
    [["--min", "3"], ["--set", "inhibition=2s"], ["--worker", "shop:app"], ["--from-settings"]],
)
def test_a_queue_cannot_scale_otherwise_and_no_longer(
    command_line: CommandLine, option: list[str]
) -> None:
    said = command_line("scale", "orders", "--off", *option, "--url", "tidegate://127.0.0.1:1")

    assert said.returncode == 2
    assert said.stderr == b"tidegate: --off and settings of how it scales: one of them\n"


def test_a_machine_that_is_told_no_store_leaves_word_of_it(
    command_line: CommandLine, folder: Path
) -> None:
    words = folder / "words"

    def refused(join_file: str) -> str:
        finished = command_line(
            *("machine", "--id", "1", "--join-file", join_file),
            environment={EXIT_REASON_VARIABLE: str(words)},
        )
        assert finished.returncode == 2
        assert finished.stderr.decode() == f"tidegate: {words.read_text()}\n"
        return words.read_text()

    (folder / "picture").write_bytes(b"\x89PNG")
    (folder / "empty").touch()
    for name, why in {
        "picture": "is no text",
        "empty": "is empty",
        "nowhere": "cannot be read: No such file or directory",
    }.items():
        assert refused(str(folder / name)).startswith(f"{folder / name} {why}")


@pytest.mark.parametrize("seconds", ["inf", "nan", "86401", "-1"])
def test_a_machine_boots_within_a_day(command_line: CommandLine, seconds: str) -> None:
    said = command_line("machine", "--id", "1", "--boot-s", seconds, "--join", "postgresql://x/y")

    assert said.returncode == 2
    assert b"Traceback" not in said.stderr
    assert b"boot-s" in said.stderr


# The demo


@pytest.mark.parametrize("option", ["history", "report"])
def test_the_demo_finds_out_first_whether_it_can_keep_what_it_is_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    @contextlib.contextmanager
    def begun() -> Iterator[NoReturn]:
        raise AssertionError("the story begins")
        yield

    monkeypatch.setattr(stage, "temporary_demo_cluster", begun)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    places: dict[str, Path] = {"report": tmp_path / "page.html", "history": tmp_path / "histories"}

    def refusal(path: Path) -> str:
        with pytest.raises(NotWritten) as refused:
            demo.demo(**(places | {option: path}))
        return str(refused.value)

    if option == "report":
        assert refusal(tmp_path / "file" / "page.html").endswith("file: File exists")
        assert refusal(tmp_path / "folder").endswith("folder is a folder: name the page")
    else:
        assert refusal(tmp_path / "file").endswith("file: File exists")
    assert "Not a directory" in refusal(tmp_path / "file" / "below" / "it")
    with pytest.raises(AssertionError, match="the story begins"):
        demo.demo(**places)
    assert not any(tmp_path.joinpath("histories").iterdir())


def test_the_demo_tells_what_came_of_it_before_it_keeps_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Played:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def play(self) -> None: ...

        async def dismiss(self) -> None: ...

        def verdict(self, _: object) -> None: ...

        def windows(self) -> None: ...

    def fail(*_: object) -> NoReturn:
        raise Unavailable("the page cannot be written")

    monkeypatch.setattr(runner, "DemoRunner", Played)
    monkeypatch.setattr(evidence, "DemoHistories", Played)
    monkeypatch.setattr(evidence, "summarize", lambda *_: SimpleNamespace(good=True))
    monkeypatch.setattr(demo, "_summary_json", lambda *words: told.append(words[0]))
    (tmp_path / "a.history").touch()
    the_stage: Any = SimpleNamespace(
        histories=tmp_path,
        store_urls=[],
        open=lambda: None,
        close=lambda: None,
        dismiss=Played().dismiss,
    )

    def perform(page: Path | None, history: Path | None) -> None:
        demo._perform(
            the_stage, demo_scenario(), Output(True), page, history, keep=False, console=False
        )

    with pytest.raises(Unavailable, match=r"histories could not be kept .*No such file"):
        perform(None, tmp_path / "gone")
    assert len(told) == 1
    monkeypatch.setattr(demo, "_learned", fail)
    with pytest.raises(Unavailable, match="the page cannot be written"):
        perform(tmp_path / "page.html", None)
    assert len(told) == 2
