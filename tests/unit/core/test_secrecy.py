"""Passwords do not get into what people read."""

import pytest

from tidegate.core.text import redact_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter2@there:5432/x", "postgresql://me:***@there:5432/x"),
        ("tidegate://a:hun@ter2@there", "tidegate://a:***@there"),
        (
            "to amqp://u:hunter2@h and http://u:hunter2@h/p",
            "to amqp://u:***@h and http://u:***@h/p",
        ),
        ("host=x password=hunter2 user=y", "host=x password=*** user=y"),
        ("host=x password='hun ter2' user=y", "host=x password=*** user=y"),
        (
            "postgresql://h/x?user=a&password=hunter2&b=c",
            "postgresql://h/x?user=a&password=***&b=c",
        ),
        (
            "postgresql://tidegate@/tidegate?host=%2Ftmp",
            "postgresql://tidegate@/tidegate?host=%2Ftmp",
        ),
        ("tidegate://127.0.0.1:7411", "tidegate://127.0.0.1:7411"),
        ("nothing secret: at 12:30 @ home", "nothing secret: at 12:30 @ home"),
    ],
)
def test_passwords_are_taken_out_and_the_rest_is_kept(text: str, shown: str) -> None:
    assert redact_secrets(text) == shown
