"""Monitoring of one HTTP service: what doors and instances report, judged by the agreement.

    door samples → intervals → `AgreementSample` → `AgreementLedger` → verdicts, events, status
                             → one merged sample of all doors, for the autoscaler

A second level of monitoring is a probe that sends requests from outside
(control/services/measurement.py).
`Disagreement` reports when one level is fine and the other is not, for several samples. A door that
clients cannot reach reports no errors, and a health path may answer while clients get errors.

The stored status of an agreement comes back with the next leader. The error budget is not refilled,
and a continuing breach does not begin a second time. The same holds when the document is rewritten
but promises the same.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import WindowVerdict, agreement_sample
from tidegate.agreements.ledger import AgreementLedger, LedgerEntry, StoredAgreementStatus, terms_of
from tidegate.control.services.performance import DoorReader, MergedServiceSample, percentile_s
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.services import HEALTH_ANSWER_S, PROBE_HEADER, DoorSample, Instance
from tidegate.core.store import Clock

# Seconds that a sample takes at most from a door to this node.
LATENESS_S = 1.5
# The number of consecutive samples in which door and probe must differ, or agree again.
DIFFERS_SAMPLES = 4
_SLOWER = 2.0
_SLOWER_S = 0.5
# Seconds by which a doors' sample may be older than the probe's to be compared with it.
_SAME_TIME_S = 2.0
# Seconds without a report after which a door is no longer probed.
_GIVEN_UP_S = 600.0
# Part of all requests above which failures are more than a mishap.
_REFUSED_PART = 0.1
# The status of a door that rejects a request because of its admission limit.
_REFUSED_STATUS = 503


@dataclass(frozen=True)
class MonitoringResult:
    """The result of one measurement."""

    # None if nothing is new, or nothing has been measured yet.
    reading: MergedServiceSample | None
    # Windows that this measurement closed.
    entries: list[LedgerEntry]
    # The open window so far.
    window: WindowVerdict | None
    is_silent: bool


class ServiceMonitor:
    """Measures and judges one service under its agreement."""

    def __init__(self, agreement: Agreement, kept: StoredAgreementStatus | None = None) -> None:
        self.agreement = agreement
        self._reader = DoorReader()
        is_same = kept is not None and kept.is_of(agreement)
        self.ledger = AgreementLedger(
            agreement,
            kept.history if kept is not None and is_same else None,
            lateness_s=LATENESS_S,
        )
        if kept is not None and is_same:
            self.ledger.resume(kept.stands)

    def follow(self, agreement: Agreement) -> bool:
        """Use another document; return True if its promises, and so its budget, are new."""
        if self.ledger.history.terms == terms_of(agreement):
            self.agreement = self.ledger.agreement = agreement
            return False
        self.agreement = agreement
        self.ledger = AgreementLedger(agreement, lateness_s=LATENESS_S)
        return True

    def move_warnings(self, agreement: Agreement) -> None:
        """Use the same promises with other learned warnings; the history continues."""
        self.agreement = self.ledger.agreement = agreement

    def update(
        self, samples: Sequence[DoorSample], instances: Sequence[Instance], at: float, wall: float
    ) -> MonitoringResult:
        """Return the merged sample, the closed windows and the open one.

        `at` is the loop's clock in seconds, `wall` the clock of people and doors in seconds since
        1970.
        """
        free = [one.free_memory_bytes for one in instances]
        entries: list[LedgerEntry] = []
        self.ledger.set_clock(wall)
        for interval in self._reader.read(samples, at):
            sample = agreement_sample(interval.between, interval.interval_s, free)
            # A fast clock would close windows that other doors are still in, and a slow one would
            # find its window closed. Use this node's time instead of an implausible one.
            if not wall - LATENESS_S <= sample.at_s <= wall:
                sample = replace(sample, at_s=wall)
            entries += self.ledger.add_sample(sample)
        entries += self.ledger.advance(wall)
        return MonitoringResult(
            reading=self._reader.reading(at),
            entries=entries,
            window=self.ledger.so_far(),
            is_silent=self._reader.is_silent(at),
        )


class Disagreement:
    """Detects that the doors and the probe report different things."""

    def __init__(self) -> None:
        # The current difference as text; empty if both agree.
        self.now = ""
        self._differs = 0
        self._agrees = 0

    def update(
        self, probe: ProbeSample, reading: MergedServiceSample, *, is_bounded: bool = False
    ) -> str | None:
        """Return the text of a new disagreement, "" when it ends, None if nothing has changed.

        With `is_bounded` the doors reject what exceeds the admission limit. This is then no
        failure, also if they reject the probe.
        """
        if is_bounded and probe.status == _REFUSED_STATUS:
            return None
        return self._told(_differs(probe, reading, 0.0 if is_bounded else reading.refused_per_s))

    def take_alone(self, probe: ProbeSample, silence: str = "no door reports") -> str | None:
        """Compare in the same way while doors are silent: all of them may have died."""
        failure = probe.failure
        return self._told(f"{silence}, and the probe fails: {failure}" if failure else "")

    @property
    def is_over(self) -> bool:
        """Whether door and probe have agreed for long enough."""
        return self._agrees >= DIFFERS_SAMPLES

    def _told(self, differs: str) -> str | None:
        self._differs = self._differs + 1 if differs else 0
        self._agrees = 0 if differs else self._agrees + 1
        if differs and not self.now and self._differs >= DIFFERS_SAMPLES:
            self.now = differs
            return differs
        if self.now and self._agrees >= DIFFERS_SAMPLES:
            self.now = ""
            return ""
        return None


class Disagreements:
    """Disagreements of each door: a healthy door must not hide a broken one.

    A silent door is still probed, because it may hang, and the other doors continue to report
    without it. A door that has ended is forgotten: nothing listens at its address.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, Disagreement] = {}
        # When each door last reported, by the loop's clock.
        self._heard_at: dict[str, float] = {}
        self._reading: MergedServiceSample | None = None

    def follow(self, reading: MergedServiceSample) -> bool:
        """Use a new sample of the doors; return True if a door that disagreed was forgotten."""
        self._reading = reading
        self._heard_at |= dict.fromkeys(reading.addresses, reading.at)
        gone = [a for a, heard_at in self._heard_at.items() if reading.at - heard_at > _GIVEN_UP_S]
        disagreed = [self._remove(address) for address in gone]
        return any(disagreed)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the doors to probe."""
        return tuple(self._heard_at)

    def _remove(self, address: str) -> bool:
        """Remove a door and return whether it disagreed."""
        self._heard_at.pop(address, None)
        known = self._by_address.pop(address, None)
        return known is not None and bool(known.now)

    def update(
        self, probe: ProbeSample, at: float, *, is_silent: bool, is_bounded: bool
    ) -> str | None:
        """Update the disagreement about the probed door; `is_silent` means that no door reports."""
        if probe.address not in self._heard_at:
            # The door was forgotten while the probe was on its way.
            return None
        own = self._by_address.setdefault(probe.address, Disagreement())
        said = None
        if is_silent:
            said = own.take_alone(probe)
        elif self._reading is not None and at - self._reading.at <= _SAME_TIME_S:
            if probe.address in self._reading.addresses:
                said = own.update(probe, self._reading, is_bounded=is_bounded)
            else:
                said = self._take_silent(probe, own)
        return f"{said} (asked at {probe.address})" if said else said

    def _take_silent(self, probe: ProbeSample, own: Disagreement) -> str | None:
        """Compare a door that is silent while others report."""
        if probe.nobody_listens:
            return "" if self._remove(probe.address) else None
        said = own.take_alone(probe, "the door reports no more")
        if own.is_over:
            self._remove(probe.address)
        return said


def _differs(probe: ProbeSample, reading: MergedServiceSample, refused_per_s: float) -> str:
    turned_away = refused_per_s + sum(one.bad_per_s for one in reading.instances.values())
    handled = reading.answered_per_s + refused_per_s
    is_well = not reading.trouble and turned_away <= _REFUSED_PART * handled
    if probe.failure and is_well:
        return f"doors report no trouble, and the probe fails: {probe.failure}"
    if not probe.failure and not is_well:
        said = reading.trouble or (
            f"{turned_away:.3g} of {handled:.3g} requests a second turned away or failed"
        )
        return f"the probe is well, and doors report: {said}"
    slowest_s = percentile_s(reading.response, 0.95)
    if probe.failure or slowest_s is None:
        return ""
    if probe.duration_s <= _SLOWER * slowest_s + _SLOWER_S:
        return ""
    return (
        f"doors report that 95 % are answered within {slowest_s:.3g} s, and the probe waits "
        f"{probe.duration_s:.3g} s"
    )


# One HTTP request on its own connection with a time limit, for the probe and for webhooks.
#
# No connection is reused. A probe must find out whether a server accepts connections, and an old
# connection could still work. HTTP/1.1, no redirects, and no proxies of the environment.


# Bytes of a response that are read at most. The rest of a longer one is not checked.
_ANSWER_BYTES_MAX = 1024 * 1024
_FIELDS = {"User-Agent": "tidegate", "Accept-Encoding": "identity", "Connection": "close"}


def checked_url(url: str) -> str:
    """Return the URL without its user; raise `InvalidValue` with the correct form if unusable."""
    parts = urlsplit(url)
    try:
        _ = parts.port
    except ValueError as error:
        raise InvalidValue(f"{url!r} has no port that can be: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue(f"{url!r} is no address: write http://HOST:PORT/PATH")
    if any(letter <= " " or letter > "~" for letter in url):
        raise InvalidValue(f"{url!r} holds what no address may: encode it (%20)")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


async def http_get(
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: bytes = b"",
    content_type: str = "application/json",
    fields: Mapping[str, str] | None = None,
) -> int:
    """Send a request and return the status of the complete response.

    Raises `Unavailable` if there is no complete response within `timeout_s` seconds.
    """
    target = checked_url(url)
    # Imported in a thread, by the first leader with a service or a webhook: the import takes 60 ms,
    # in which the node would serve no queue.
    httpx = await asyncio.to_thread(importlib.import_module, "httpx")
    context = ssl.create_default_context() if target.startswith("https:") else False
    headers = {**_FIELDS, **({"Content-Type": content_type} if body else {}), **(fields or {})}
    try:
        async with (
            # For the whole request. The timeouts of httpx are for its parts.
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(trust_env=False, verify=context, timeout=None) as client,
            client.stream(method, target, content=body, headers=headers) as answer,
        ):
            count = 0
            async for part in answer.aiter_raw():
                count += len(part)
                if count >= _ANSWER_BYTES_MAX:
                    break
            return int(answer.status_code)
    except TimeoutError as error:
        raise Unavailable(f"no answer within {timeout_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        root = _root_of(error)
        raise Unavailable(str(root) or type(root).__name__) from root


def _root_of(error: BaseException) -> BaseException:
    """Return the error of the operating system, which says more than those that wrap it."""
    while (wrapped := error.__cause__ or error.__context__) is not None:
        error = wrapped
    # One error for each address of a host.
    return _root_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


# The probe: sends a request to a door every second, as a client would, on its own connection.
#
# Its samples are independent of what doors report; control/services/measurement.py compares both. A
# response with status 500 and above is a failure, and so is a missing response. Several doors are
# probed in turn. The request runs in a task, so a door that hangs delays nothing. Doors recognize
# the probe by its header and do not count it.


PERIOD_S = 1.0
_KEPT = 60


@dataclass(frozen=True)
class ProbeSample:
    """The result of one probe request."""

    # Seconds since 1970.
    at: float
    address: str
    duration_s: float
    # None if there was no response.
    status: int | None
    # Why the probe failed; empty if it did not.
    failure: str = ""
    # Whether the computer answered, and refused the connection because nothing listens on the port.
    nobody_listens: bool = False


# Sends a request to an address for a path, with a mark.
Ask = Callable[[str, str, str], Awaitable[ProbeSample]]


async def probe_door(
    address: str, path: str, mark: str = "", timeout_s: float = HEALTH_ANSWER_S
) -> ProbeSample:
    """Send one request to a door; a failure is part of the sample and not raised."""
    url = f"{address.rstrip('/')}{path}" if "://" in address else f"http://{address}{path}"
    at, began = time.time(), time.monotonic()
    status, failure, nobody_listens = None, "", False
    try:
        fields = {PROBE_HEADER: mark} if mark else {}
        status = await http_get("GET", url, timeout_s=timeout_s, fields=fields)
    except TidegateError as error:
        failure = str(error)
        nobody_listens = isinstance(error.__cause__, ConnectionRefusedError)
    if status is not None and status >= 500:
        failure = f"it answered {status}"
    took_s = time.monotonic() - began
    return ProbeSample(at, address, took_s, status, failure, nobody_listens)


class HttpProbe:
    """Probes the doors of one service in turn."""

    def __init__(self, ask: Ask = probe_door, clock: Clock | None = None) -> None:
        self._ask = ask
        self._clock = clock or Clock()
        self.addresses: Sequence[str] = ()
        self.path = "/"
        # The mark by which doors recognize the probe (`DoorSettings.probe_mark`).
        self.mark = ""
        self.samples: deque[ProbeSample] = deque(maxlen=_KEPT)
        self._turn = 0
        self._asking: asyncio.Task[ProbeSample] | None = None
        self._asked_at = float("-inf")

    def tick(self, now: float) -> list[ProbeSample]:
        """Start a request if one is due, and return the results since the last call; never wait."""
        came: list[ProbeSample] = []
        if self._asking is not None and self._asking.done():
            task, self._asking = self._asking, None
            if not task.cancelled() and task.exception() is None:
                came.append(task.result())
                self.samples.append(task.result())
        if self._asking is None and self.addresses and now - self._asked_at >= PERIOD_S:
            self._asked_at = now
            self._turn += 1
            address = self.addresses[self._turn % len(self.addresses)]
            self._asking = asyncio.ensure_future(self._ask(address, self.path, self.mark))
        return came

    def stop(self) -> None:
        """Cancel the running request and start no more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
