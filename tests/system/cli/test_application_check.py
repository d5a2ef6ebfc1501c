"""What cannot be hosted is refused before anything starts, with a sentence that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from waiting import eventually

from tidegate.cli.service_options import check_application
from tidegate.core.errors import InvalidValue

GOOD = "async def app(scope, receive, send): ...\n"


@pytest.mark.parametrize(
    ("code", "target", "says"),
    [
        ("raise RuntimeError('no database')", "shop:app", "RuntimeError: no database"),
        ("import os; os._exit(7)", "shop:app", "ended the process (exit code 7)"),
        (GOOD, "shop:application", "has no 'application'; there is shop:app"),
        (GOOD, "shop:app-1", "is no MODULE:APP"),
        ("app = 5", "shop:app", "it is of type int, which cannot be called"),
    ],
)
def test_an_application_that_cannot_be_hosted_is_told_in_a_sentence(
    tmp_path: Path, code: str, target: str, says: str
) -> None:
    (tmp_path / "shop.py").write_text(code)

    with pytest.raises(InvalidValue) as refused:
        check_application(target, tmp_path, {})

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_application_is_imported_with_the_environment_that_it_will_have(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"import os\nprint(os.environ['SHOP_KEY'])\n{GOOD}")

    check_application("shop:app", tmp_path, {"SHOP_KEY": "hush"})
    with pytest.raises(InvalidValue, match="KeyError: 'SHOP_KEY'"):
        check_application("shop:app", tmp_path, {})


def test_application_check_ends_processes_started_by_the_import(
    tmp_path: Path,
) -> None:
    noted = tmp_path / "pid"
    (tmp_path / "shop.py").write_text(
        "import os, pathlib, signal\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    while True:\n"
        "        signal.pause()\n"
        f"pathlib.Path({str(noted)!r}).write_text(str(child))\n{GOOD}"
    )

    # It holds the other end of the pipe, and nobody waits for it to let go.
    check_application("shop:app", tmp_path, {})

    status = Path(f"/proc/{noted.read_text()}/stat")

    def is_gone() -> bool:
        try:
            return ") Z " in status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    eventually(is_gone, "the child is gone")


@pytest.mark.parametrize("is_shipped", [False, True])
def test_a_file_that_is_called_like_one_of_pythons_is_no_trouble(
    tmp_path: Path, is_shipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A place without a name is the folder itself, by whoever has set it.
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    (tmp_path / "shop.py").write_text(GOOD)
    (tmp_path / "inspect.py").write_text("raise RuntimeError('not the one that was meant')")

    check_application("shop:app", tmp_path, {}, code=tmp_path if is_shipped else None)
