"""Alerts reach a real command and a real webhook; what does not work is tried again, and logged."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from expiring import expire_when
from waiting import eventually_async

from tidegate.control.alerts import Alert, Alerts, AlertTargets
from tidegate.core.errors import InvalidValue

pytestmark = pytest.mark.asyncio

VIOLATION = Alert(
    kind="violation",
    agreement="shop",
    service="shop",
    at=1000.0,
    summary="response_p95 of shop is breached",
    evidence=["response_p95 was 1.2s (warns at 800ms, breaches at 1s)"],
    budget_left=0.9,
)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.control.alerts._AGAIN_S", 0.01)


@asynccontextmanager
async def hook(answer: Callable[[int], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A webhook on loopback: its address, and the bodies that it was sent."""
    bodies: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ]
        bodies.append(await reader.readexactly(length))
        writer.write(answer(len(bodies)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{port}/hook", bodies


def said(status: int) -> bytes:
    return f"HTTP/1.1 {status} so\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def runs(process_id: str) -> bool:
    """Whether it is there, and no mere entry in the table of processes."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def command(file: Path, code: str) -> list[str]:
    script = file.with_suffix(".py")
    script.write_text(
        f"import sys, os, time\ntext = sys.stdin.read()\nfile = {str(file)!r}\n{code}"
    )
    return [sys.executable, "-S", "-E", str(script)]


async def test_a_command_gets_the_violation_with_its_evidence_on_stdin(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    alerts = Alerts(AlertTargets(command=command(heard, "open(file, 'w').write(text)")))
    alerts.send(VIOLATION)
    await alerts.drained()
    document = json.loads(heard.read_text())
    assert document["kind"] == "violation"
    assert document["evidence"] == VIOLATION.evidence
    assert document["budget_left"] == 0.9
    assert (alerts.sent, alerts.lost) == (1, 0)


async def test_a_webhook_gets_the_same_and_is_tried_again_until_it_takes_it() -> None:
    async with hook(lambda times: said(503 if times < 3 else 200)) as (address, bodies):
        alerts = Alerts(AlertTargets(webhook=address))
        alerts.send(VIOLATION)
        await alerts.drained()
    assert len(bodies) == 3
    assert {json.loads(body)["summary"] for body in bodies} == {VIOLATION.summary}
    assert (alerts.sent, alerts.lost) == (1, 0)


async def test_undeliverable_alert_is_logged_after_its_attempts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = Alerts(
        AlertTargets(
            command=command(tmp_path / "x", "sys.exit('the pager is off')"),
            webhook="http://127.0.0.1:1/nobody",
            attempts=2,
        )
    )
    alerts.send(VIOLATION)
    await alerts.drained()
    assert (alerts.sent, alerts.lost) == (0, 1)
    assert "the pager is off" in caplog.text
    assert "lost after 2 attempts" in caplog.text


async def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tmp_path / "ids"
    script = 'sleep 600 & echo $$ $! > "$0.partial"; mv "$0.partial" "$0"; wait'
    hangs = ["/bin/sh", "-c", script, str(ids)]
    deadlines = expire_when(ids.exists, monkeypatch)
    alerts = Alerts(AlertTargets(command=hangs, attempts=1, timeout_s=1.5))
    alerts.send(VIOLATION)
    await alerts.drained()
    # Later deadlines belong to the end of the processes.
    assert deadlines[0] == 1.5
    assert alerts.lost == 1
    numbers = ids.read_text().split()
    assert len(numbers) == 2
    await eventually_async(lambda: not any(map(runs, numbers)), "both processes have ended")


async def test_a_loop_never_waits_for_an_alert(tmp_path: Path) -> None:
    """However many there are: the oldest are let go of."""
    released = asyncio.Event()

    async def never(_: bytes) -> None:
        await released.wait()

    alerts = Alerts(AlertTargets(command=["x"]))
    alerts._run_command = never  # type: ignore[method-assign]
    for _ in range(150):
        alerts.send(VIOLATION)
    await asyncio.sleep(0)
    assert alerts.lost >= 49
    await alerts.stop()


@pytest.mark.parametrize(
    ("kind", "of", "always"),
    [
        ("warning", "", False),
        ("over", "warning", False),
        ("over", "violation", True),
        ("over", "disagreement", True),
    ],
)
async def test_warnings_and_their_end_are_sent_only_to_whoever_wants_them(
    kind: str, of: str, always: bool
) -> None:
    alert = Alert(kind=kind, of=of, agreement="a", service="s", at=0.0, summary="so")
    async with hook(lambda times: said(204)) as (address, bodies):
        for wants in (False, True):
            alerts = Alerts(AlertTargets(webhook=address, warnings=wants))
            alerts.send(alert)
            await alerts.drained()
            assert len(bodies) == int(wants or always)
            bodies.clear()


@pytest.mark.parametrize("webhook", ["nowhere", "ftp://host/x", "http://host:x/", "http://a b/"])
async def test_a_webhook_that_is_no_address_is_refused_before_anything_goes_wrong(
    webhook: str,
) -> None:
    with pytest.raises(InvalidValue):
        Alerts(AlertTargets(webhook=webhook))
