"""What cannot be hosted is refused before anything starts, with a sentence that says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from waiting import eventually

from tidegate.cli.application_check import check_application
from tidegate.cli.application_probe import why_no_asgi
from tidegate.cli.service_options import environment_of
from tidegate.cli.source_files import revision_of
from tidegate.core.errors import InvalidValue
from tidegate.storage.data_folder import mark_as_data

GOOD = "async def app(scope, receive, send): ...\n"


@pytest.mark.parametrize(
    ("code", "target", "says"),
    [
        ("raise RuntimeError('no database')", "shop:app", "RuntimeError: no database"),
        ("import nowhere_to_be_found", "shop:app", "imports 'nowhere_to_be_found', which is not"),
        ("import sys; sys.exit(3)", "shop:app", "SystemExit: 3"),
        ("import os; os._exit(7)", "shop:app", "ended the process (exit code 7)"),
        (GOOD, "shops:app", "no module 'shops': looked in"),
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


def test_what_an_application_starts_while_it_is_imported_ends_with_the_check(
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


class _Framework:
    async def __call__(self, scope: object, receive: object, send: object) -> None: ...


def _wsgi(environ: object, start_response: object) -> None: ...


def _factory() -> None: ...


def test_what_is_an_asgi_application_and_what_only_looks_like_one() -> None:
    assert why_no_asgi(_Framework()) == ""
    assert "name an instance" in why_no_asgi(_Framework)
    assert "WSGI" in why_no_asgi(_wsgi)
    assert "call it" in why_no_asgi(_factory)


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


def test_another_code_is_another_revision_and_caches_and_data_are_none(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    first = revision_of(tmp_path)

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "shop.py").write_text("cached")
    assert revision_of(tmp_path) == first
    # Code of another service, as it was shipped to a machine here.
    mark_as_data(tmp_path / "tidegate-data")
    (tmp_path / "tidegate-data" / "packages").mkdir()
    (tmp_path / "tidegate-data" / "packages" / "other.py").write_text("shipped")
    assert revision_of(tmp_path) == first
    (tmp_path / "shop.py").write_text(GOOD + "# changed\n")
    assert revision_of(tmp_path) != first


def test_a_variable_without_a_value_is_taken_from_here_and_never_guessed() -> None:
    here = {"KEY": "hush"}

    assert environment_of(["KEY", "A=b=c", "EMPTY="], here) == {
        "KEY": "hush",
        "A": "b=c",
        "EMPTY": "",
    }
    with pytest.raises(InvalidValue, match="it is not set here"):
        environment_of(["OTHER"], here)
    with pytest.raises(InvalidValue, match="is no NAME=VALUE"):
        environment_of(["1=2"], here)
