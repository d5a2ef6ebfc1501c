"""Alerts to people, by a command or a webhook, without delaying any loop.

    [alerts]
    command = ["/usr/local/bin/page", "--team", "shop"]     # gets the alert as JSON on stdin
    webhook = "http://127.0.0.1:9093/hook"                  # gets it as a POST
    warnings = false                                        # warnings as well, and their end

`send` queues an alert, and a task sends it. Each attempt has a time limit, and the number of
attempts is limited. An alert that cannot be sent is logged. If too many wait, the oldest is dropped
and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from tidegate.control.http_call import address_of, call
from tidegate.core.ending import ended
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.secrecy import without_secrets

log = logging.getLogger(__name__)

_WAITING_MAX = 100
_AGAIN_S = 1.0
# Bytes of a failed command's error output that are logged.
_SAID_BYTES_MAX = 2000


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where alerts are sent; without command and webhook they are only logged."""

    command: list[str] = []
    webhook: str | None = None
    warnings: bool = False
    timeout_s: float = 10.0
    attempts: int = 3


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A message to people about one event."""

    # violation, burn-rate, shortage, disagreement, warning, over
    kind: str
    # For the kind "over": the kind of what has ended. An alert and its end are filtered alike, so
    # that the end of every alert is sent.
    of: str = ""
    # The name of the agreement, and of the queue or service that it governs.
    agreement: str
    service: str
    # Seconds since 1970.
    at: float
    summary: str
    evidence: list[str] = []
    # Part of the error budget that is left: 1 is untouched, below 0 is overdrawn.
    budget_left: float | None = None


class Alerts:
    """Sends alerts in a task of its own, started by `send`."""

    def __init__(self, settings: AlertSettings | None = None) -> None:
        self.settings = settings or AlertSettings()
        if self.settings.webhook:
            address_of(self.settings.webhook)
        self._waiting: deque[Alert] = deque()
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.lost = 0

    def send(self, alert: Alert) -> None:
        """Queue an alert and return at once; drop warnings if they are switched off."""
        if "warning" in (alert.kind, alert.of) and not self.settings.warnings:
            return
        log.warning("alert: %s: %s", alert.service, alert.summary)
        if not (self.settings.command or self.settings.webhook):
            return
        if len(self._waiting) >= _WAITING_MAX:
            let_go = self._waiting.popleft()
            self.lost += 1
            log.error("an alert is lost, too many wait: %s", let_go.summary)
        self._waiting.append(alert)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all())

    async def drained(self) -> None:
        """Wait until every queued alert has been sent or has failed."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Stop sending; log the alerts that still wait as lost."""
        if self._task is not None:
            await ended([self._task])
        for alert in self._waiting:
            log.error("an alert was not sent: %s", alert.summary)
        self._waiting.clear()

    async def _send_all(self) -> None:
        while self._waiting:
            alert = self._waiting.popleft()
            if await self._sent(alert):
                self.sent += 1
            else:
                self.lost += 1

    async def _sent(self, alert: Alert) -> bool:
        document = msgspec.json.encode(alert)
        ways: list[Callable[[bytes], Awaitable[None]]] = []
        if self.settings.command:
            ways.append(self._run_command)
        if self.settings.webhook:
            ways.append(self._post)
        results = [await self._tried(way, document, alert) for way in ways]
        return all(results)

    async def _tried(
        self, way: Callable[[bytes], Awaitable[None]], document: bytes, alert: Alert
    ) -> bool:
        failure = ""
        for attempt in range(self.settings.attempts):
            if attempt:
                await asyncio.sleep(_AGAIN_S * 2.0 ** (attempt - 1))
            try:
                await way(document)
            except TidegateError as error:
                failure = without_secrets(str(error))
                log.warning("an alert could not be sent: %s", failure)
            else:
                return True
        log.error("an alert is lost after %s attempts: %s", self.settings.attempts, alert.summary)
        return False

    async def _run_command(self, document: bytes) -> None:
        name = self.settings.command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self.settings.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{name} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                _, said = await process.communicate(document)
        except TimeoutError as error:
            raise Unavailable(f"{name} took longer than {self.settings.timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    # Kill the whole process group, or children of the command would survive.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            words = said[-_SAID_BYTES_MAX:].decode(errors="replace").strip()
            raise Unavailable(f"{name} ended with {process.returncode}: {words}")

    async def _post(self, document: bytes) -> None:
        assert self.settings.webhook is not None
        status = await call(
            "POST", self.settings.webhook, timeout_s=self.settings.timeout_s, body=document
        )
        if not 200 <= status < 300:
            raise Unavailable(f"the webhook answered {status}")
