"""What applications import: names, parameters, defaults, enums and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from golden_api import Api, public_names
from golden_files import Golden

import tidegate
from tidegate import gateway, testing
from tidegate.client import engine

_ENGINE = {name: thing for name, thing in vars(engine).items() if name.startswith("Engine")}
_OF_A_MESSAGE = (
    *("ack_through", "arrived_at", "dedup_id", "expires_at", "extend", "group", "payload"),
    *("receiver", "sender", "tenant"),
)
# Classes that have other methods, for Tidegate's own use: what users call of them.
_FOR_USERS = {
    "Client": {*dir(tidegate.BlockingClient), *dir(engine.EngineClient)},
    "Message": {*dir(engine.EngineMessage), *_OF_A_MESSAGE},
    "Subscription": {*dir(engine.EngineSubscription), "address", "replica", "run"},
    "StickySessions": (),
    "VirtualTimeLoop": ("time",),
    "tracing": ("context_of", "process_span"),
}


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("tidegate", public_names(tidegate)),
        ("testing", public_names(testing)),
        ("gateway", public_names(gateway)),
        ("engine", _ENGINE),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_public_python_api_is_unchanged(golden: Golden, file: str, names: dict[str, Any]) -> None:
    golden(f"api/{file}.txt", _lines(names))


def _lines(names: dict[str, Any]) -> Iterator[str]:
    api = Api(
        [*public_names(tidegate), *public_names(testing), *public_names(gateway), *_ENGINE],
        _FOR_USERS,
    )
    for name in sorted(names):
        yield from api.lines(name, names[name])
        yield ""
