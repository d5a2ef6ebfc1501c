"""What a URL of RabbitMQ says, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tidegate.engines.rabbitmq.client import parse_address


def test_address_keeps_own_options_and_passes_others_to_aio_pika() -> None:
    address = parse_address(
        "amqp://ann:se%2Fcret@mq.example:5673/shop?queue_type=quorum&heartbeat=7", name="till"
    )

    assert address.queue_type == "quorum"
    assert (address.url.user, address.url.password) == ("ann", "se/cret")
    assert (address.url.host, address.url.port, address.url.path) == ("mq.example", 5673, "/shop")
    assert dict(address.url.query) == {"heartbeat": "7", "name": "till"}
    assert "cret" not in address.shown


def test_address_defaults_to_guest_and_port_5672() -> None:
    address = parse_address("amqp://127.0.0.1")

    assert (address.url.user, address.url.password, address.url.port) == ("guest", "guest", 5672)
    assert (address.queue_type, address.max_priority, address.tls) == ("classic", None, None)


def test_user_and_password_may_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")

    address = parse_address("amqp://host/", user="ann", password_file=tmp_path / "password")

    assert (address.url.user, address.url.password) == ("ann", "secret")


def test_tls_is_asked_for_by_the_scheme_or_beside_it() -> None:
    assert parse_address("amqps://host/").tls is not None
    asked = parse_address("amqp://host/", tls=True)
    assert asked.tls is not None
    assert (asked.url.scheme, asked.url.port) == ("amqps", 5671)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://", "names no host"),
        ("amqp://host:port/", "is no URL"),
        ("amqp://host/?queue_type=stream", "classic or quorum, not 'stream'"),
        ("amqp://host/?max_priority=0", "from 1 to 255, not '0'"),
        ("amqp://host/?max_priority=9&queue_type=quorum", "is for classic queues"),
    ],
)
def test_connect_refuses_an_invalid_address(url: str, said: str) -> None:
    with pytest.raises(tidegate.InvalidValue, match=said):
        tidegate.connect(url)


def test_connect_refuses_options_that_only_nodes_have() -> None:
    for settings in ({"client_id": 7}, {"mode": "admin"}, {"ca_file": "/ca.pem"}, {"tls": False}):
        url = "amqps://host/" if "tls" in settings else "amqp://host/"
        with pytest.raises(tidegate.InvalidValue, match=next(iter(settings))):
            tidegate.connect(url, **settings)  # type: ignore[arg-type]


def test_without_aio_pika_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "aio_pika", None)
    with pytest.raises(tidegate.InvalidValue, match=r"pip install 'tidegate\[rabbitmq\]'"):
        tidegate.App("amqp://host/")


def test_an_unknown_scheme_is_answered_with_those_there_are() -> None:
    there_are = "nothing here speaks kafka://.*amqp://, amqps://, tidegate://"
    for use in (tidegate.connect, tidegate.App):
        with pytest.raises(tidegate.InvalidValue, match=there_are):
            use("kafka://host/")
