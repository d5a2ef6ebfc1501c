"""Code that is to be hosted: what is an application, what is another version, which variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.application_probe import why_no_asgi
from tidegate.cli.service_options import environment_of
from tidegate.cli.worker import revision_of
from tidegate.core.errors import InvalidValue
from tidegate.storage.postgres_server import mark_data_folder

GOOD = "async def app(scope, receive, send): ...\n"


class _Framework:
    async def __call__(self, scope: object, receive: object, send: object) -> None: ...


def _wsgi(environ: object, start_response: object) -> None: ...


def _factory() -> None: ...


def test_why_no_asgi_names_what_an_object_is() -> None:
    assert why_no_asgi(_Framework()) == ""
    assert "name an instance" in why_no_asgi(_Framework)
    assert "WSGI" in why_no_asgi(_wsgi)
    assert "call it" in why_no_asgi(_factory)


def test_another_code_is_another_revision_and_caches_and_data_are_none(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GOOD)
    first = revision_of(tmp_path)

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "shop.py").write_text("cached")
    assert revision_of(tmp_path) == first
    # Code of another service, as it was shipped to a machine here.
    mark_data_folder(tmp_path / "tidegate-data")
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
