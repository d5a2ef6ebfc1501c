"""Where nodes listen, as people write it."""

from __future__ import annotations

import pytest

from tidegate.client.address import parse_url
from tidegate.core.errors import InvalidValue


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("tidegate://localhost", [("localhost", 7411)]),
        ("tidegate://localhost/", [("localhost", 7411)]),
        ("tidegate://127.0.0.1:5000", [("127.0.0.1", 5000)]),
        ("tidegate://[::1]:5000", [("::1", 5000)]),
        ("tidegate://[::1]", [("::1", 7411)]),
        ("tidegate://a:1,b:2,c", [("a", 1), ("b", 2), ("c", 7411)]),
    ],
)
def test_a_url_names_nodes(url: str, nodes: list[tuple[str, int]]) -> None:
    assert parse_url(url) == nodes


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:7411",
        "http://localhost",
        "tidegate://",
        "tidegate://a:b",
        "tidegate://a:0",
        "tidegate://a:65536",
        "tidegate://:7411",
        "tidegate://a,,b",
        "tidegate://::1:5000",
        "tidegate://a:-1",
        "tidegate://a:²",
        "tidegate://a:٣",
        f"tidegate://a:{'9' * 5000}",
        None,
    ],
)
def test_invalid_url_is_refused_with_an_explanation(url: str) -> None:
    with pytest.raises(InvalidValue, match=r"write tidegate://|no port|no host"):
        parse_url(url)
