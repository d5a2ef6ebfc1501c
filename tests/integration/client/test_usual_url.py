"""Whoever names no node gets the one that the environment names, as the commands do."""

from __future__ import annotations

import pytest
from backing import StartNode

import tidegate
from tidegate.client.app import App
from tidegate.client.connect import DEFAULT_URL, URL_VARIABLE, default_url
from tidegate.core.errors import InvalidValue


async def test_connect_goes_where_the_environment_says(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = await start_node(), await start_node()
    monkeypatch.setenv(URL_VARIABLE, node.address)

    async with tidegate.connect() as mq:
        assert (await mq.node_stats()).nodes[0].address == node.address
    # What is said in the code goes before.
    async with tidegate.connect(other.address) as mq:
        assert (await mq.node_stats()).nodes[0].address == other.address
    assert App().url == node.address
    assert App(other.address).url == other.address


def test_without_a_word_it_is_the_node_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    assert default_url() == App().url == DEFAULT_URL
    monkeypatch.setenv(URL_VARIABLE, "")
    assert default_url() == DEFAULT_URL


def test_a_wrong_url_in_the_environment_fails_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "http://example")
    with pytest.raises(InvalidValue):
        tidegate.connect()
