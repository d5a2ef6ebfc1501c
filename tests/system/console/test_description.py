"""Schemathesis: what the description says, the API does, whatever it is sent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from serving_console import console_of

from tidegate.broker.node import Node
from tidegate.client.client import Client

EXAMPLES = [3, pytest.param(30, marks=pytest.mark.only_with_all)]
# Against hanging; it says nothing about speed.
_LIMIT_S = 550
_LEFT_OUT = (
    # Nobody logs in here; those who must are in test_doorkeeping.py.
    "ignored_auth",
    # TRACE is refused by the server below, in its own words; OPTIONS is answered by the framework.
    "unsupported_method",
    "allow_header_conformance",
    # 0 is taken for false, and "5" for 5.
    "negative_data_rejection",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", EXAMPLES)
async def test_the_api_does_what_its_description_says(
    node: Node, mq: Client, tmp_path: Path, examples: int
) -> None:
    for name in ("orders", "orders.dead"):
        await mq.create_queue(name)
    await mq.put("orders", b"one")
    async with console_of(node, tmp_path / "console", results=(tmp_path,)) as console:
        found = await asyncio.to_thread(_examined, console.address, tmp_path, examples)
    assert found.returncode == 0, (found.stdout + found.stderr)[-8000:]


def _examined(address: str, folder: Path, examples: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/api/openapi.json"),
            *("--max-examples", str(examples), "--seed", "1"),
            *("--phases", "coverage,fuzzing"),
            # A stream has no end; logging in with anything is slow on purpose.
            *("--exclude-path", "/api/live", "--exclude-path", "/api/session"),
            *("--checks", "all", "--exclude-checks", ",".join(_LEFT_OUT)),
            *("--no-color", "--request-timeout", "60"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
