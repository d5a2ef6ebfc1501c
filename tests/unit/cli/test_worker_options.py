"""`tidegate worker`: which app is meant, what cannot be run, and what its options say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

import tidegate
from tidegate.cli.worker import Sources, load_app, prefetch_of
from tidegate.core.errors import InvalidValue

SHOP = """
import tidegate

app = tidegate.App("tidegate://127.0.0.1:1")


@app.worker("orders")
def handle(order: str): ...
"""


def test_sources_are_python_files_here_and_not_those_of_environments(folder: Path) -> None:
    for name in (".git/a.py", "venv/pyvenv.cfg", "venv/b.py", "node_modules/c.py", "shop/d.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    sources = Sources(folder)
    assert sources.changed() == []

    for name in (".git/a.py", "venv/b.py", "node_modules/c.py", "shop/notes.txt"):
        (folder / name).write_text("changed")
        os.utime(folder / name, ns=(1, 1))
    assert sources.changed() == []

    os.utime(folder / "shop/d.py", ns=(1, 1))
    (folder / "new.py").write_text("")
    assert sources.changed() == [str(folder / "new.py"), str(folder / "shop/d.py")]
    (folder / "new.py").unlink()
    assert sources.changed() == [str(folder / "new.py")]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere_to_be_found:app", "no module 'nowhere_to_be_found': looked in .*tidegate-cli-"),
        ("wanting:app", "'wanting' was found, but imports 'not_installed_at_all'"),
        ("broken:app", "'broken' fails when imported: ZeroDivisionError: division by zero"),
        ("several:missing", r"several \(.*several.py\) has no 'missing'; there is several:shop"),
        ("several", r"several \(.*\) has no 'app'; there is several:shop"),
        ("several:number", "'number' in several .* is of type int, no tidegate.App; there is"),
        ("empty", "has no 'app'; no tidegate.App is in it"),
        (":app", "is no MODULE:APP"),
        ("several:shop[0]", "is no MODULE:APP"),
    ],
)
def test_load_app_error_names_what_it_tried(
    target: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "wanting": "import not_installed_at_all",
        "broken": "1 / 0",
        "several": "import tidegate\nnumber = 7\nshop = tidegate.App()",
        "empty": "",
    }.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(InvalidValue, match=said):
        load_app(target)


def test_an_app_is_found_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "nested.py").write_text(
        "import tidegate\nclass inside:\n    shop = tidegate.App()\napp = inside.shop"
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert load_app("nested:inside.shop") is load_app("nested")


def test_wrong_use_is_one_sentence_and_an_exit_code(
    command_line: CommandLine, folder: Path
) -> None:
    (folder / "idle.py").write_text("import tidegate\napp = tidegate.App()")
    (folder / "shop.py").write_text(SHOP)

    def run(*arguments: str) -> tuple[int, str]:
        finished = command_line("worker", *arguments, folder=folder)
        return finished.returncode, finished.stderr.decode()

    code, said = run("idle")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("tidegate: the app has no workers")
    code, said = run("shop", "--queues", "mails")
    assert (code, said) == (2, "tidegate: no worker serves mails; there are workers for orders\n")
    code, said = run("shop")
    assert code == 1
    assert "tidegate: nothing answers at 127.0.0.1:1" in said
    code, said = run("shop", "--url", "amqp://127.0.0.1:9/")
    assert (code, said.count("\n")) == (1, 1)
    assert "Connection refused: is it running, and is this its address?" in said
    code, said = run("shop", "--concurrency", "0")
    assert code == 2


def test_options_say_what_the_prefetch_is_steered_to(folder: Path) -> None:
    model = tidegate.PrefetchModel(a=0.1, b=70.0)
    file = folder / "model.json"
    model.save(file)

    goal = tidegate.PrefetchGoal
    assert prefetch_of(None, None, False, None, None) is None
    assert prefetch_of(5, None, False, None, None) == 5
    assert prefetch_of(None, "400/s", False, None, 20.0) == goal(rate_per_s=400.0, settle_s=20.0)
    assert prefetch_of(None, None, True, file, None) == goal(model=model)
    # For the goals that the app itself has.
    assert prefetch_of(None, None, False, file, None) == model


@pytest.mark.parametrize(
    ("prefetch", "target", "keep_up", "model", "says"),
    [
        (None, "400/s", True, None, "one of them"),
        (None, "0/s", False, None, "above 0"),
        (None, "fast", False, None, "is not a rate"),
        (None, None, True, "none.json", "cannot be read"),
        (5, None, False, "model.json", "needs no --prefetch-model"),
        (5, None, False, None, "--settle is for a goal"),
        (None, None, False, "model.json", "--settle is for a goal"),
    ],
)
def test_a_goal_that_makes_no_sense_is_said_before_anything_runs(
    folder: Path,
    prefetch: int | None,
    target: str | None,
    keep_up: bool,
    model: str | None,
    says: str,
) -> None:
    tidegate.PrefetchModel(a=0.1, b=70.0).save(folder / "model.json")
    settle_s = 30.0 if "--settle" in says else None
    with pytest.raises(InvalidValue, match=says):
        prefetch_of(prefetch, target, keep_up, None if model is None else folder / model, settle_s)
