"""What clients are called that were given no name."""

from __future__ import annotations

import sys

import pytest

from tidegate.client.connection import default_client_name


@pytest.mark.parametrize(
    ("argument", "program"),
    [
        ("/srv/shop/bin/tidegate", "tidegate"),
        ("/srv/lib/tidegate/__main__.py", "tidegate"),
        ("billing.py", "billing"),
        ("a#b@c d", "a-b-c-d"),
        ("", "python"),
    ],
)
def test_a_restarted_program_is_known_by_what_stands_before_the_at(
    monkeypatch: pytest.MonkeyPatch, argument: str, program: str
) -> None:
    monkeypatch.setattr(sys, "argv", [argument])

    one, another = default_client_name(), default_client_name()

    assert one.partition("@")[0] == another.partition("@")[0] == program
    assert one != another
