"""The instances of one machine: starts the wanted ones, ends the others, reports all.

An instance is started, and restarted, with what was deployed under its own version. While a new
version comes or fails to start, instances of the old version continue unchanged, here or on another
machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.core.errors import TidegateError
from tidegate.core.hosting import HostingStore, Instance, InstanceState
from tidegate.fleet.app_instance import AppInstance, AppOptions
from tidegate.fleet.free_memory import InstanceMemory, instance_memory
from tidegate.fleet.package_cache import PackageCache

log = logging.getLogger(__name__)

# Seconds between two reports of an unchanged instance.
_REPORT_S = 1.0
# Doors read draining states four times a second; until then they send requests.
_FOLLOW_S = 0.5
# A report: state, address, detail.
_Word = tuple[InstanceState, str | None, str]


class HostedInstances:
    """All instances of one machine."""

    def __init__(
        self,
        store: HostingStore,
        options: AppOptions,
        data: Path,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._options = options
        self._packages = PackageCache(data, options.machine_id, store)
        self._news = news
        self._running: dict[int, AppInstance] = {}
        # Instances that cannot be started, with the reason.
        self._refused: dict[int, str] = {}
        # The last report of each instance, and when it was sent.
        self._reported: dict[int, tuple[_Word, float]] = {}

    @property
    def ids(self) -> set[int]:
        """Ids of instances that run here and were not asked to end."""
        return {number for number, one in self._running.items() if not one.is_leaving}

    @property
    def trouble(self) -> str:
        """Problems of all instances as one text; empty if there are none."""
        troubles = {
            number: one.detail for number, one in self._running.items() if not one.is_leaving
        }
        troubles |= self._refused
        return "; ".join(
            f"instance {number}: {text}" for number, text in sorted(troubles.items()) if text
        )

    async def adjust(self, wanted: Sequence[Instance], node: str) -> None:
        """Start and end instances one step towards `wanted`, then report all of them."""
        await self._begin([one for one in wanted if one.instance_id not in self._running], node)
        ids = {one.instance_id for one in wanted}
        for number, running in list(self._running.items()):
            if number not in ids:
                running.let_go()
            if running.is_gone:
                del self._running[number]
        for number in self._reported.keys() - ids:
            del self._reported[number]
        await self._report()

    async def _begin(self, new: Sequence[Instance], node: str) -> None:
        self._refused = {}
        # A draining instance that does not run here has ended already.
        new = [one for one in new if one.state is not InstanceState.DRAINING]
        if not new:
            return
        in_use = {one.spec.package for one in self._running.values()}
        for instance in new:
            spec = await self._store.spec_of(instance.service, instance.version)
            if spec is None:
                words = f"version {instance.version} of {instance.service} is deployed no more"
                self._refused[instance.instance_id] = words
                continue
            in_use.add(spec.package)
            self._running[instance.instance_id] = AppInstance(
                instance, spec, self._options, node, self._packages, self._news
            )
        self._packages.forget_all_but({digest for digest in in_use if digest is not None})

    async def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        words: dict[int, _Word] = {
            number: (one.state, one.address, one.detail)
            for number, one in self._running.items()
            if not one.is_leaving
        }
        words |= {
            number: (InstanceState.FAILED, None, why) for number, why in self._refused.items()
        }
        for number, word in words.items():
            said, at = self._reported.get(number, (None, 0.0))
            if said == word and now - at < _REPORT_S:
                continue
            state, address, detail = word
            memory = self._memory(number)
            is_wanted = await self._store.report_instance(
                number,
                self._options.machine_id,
                state,
                address if state is InstanceState.READY else None,
                memory.free_bytes,
                detail,
                memory.resident_bytes,
            )
            self._reported[number] = (word, now)
            if not is_wanted and number in self._running:
                self._running[number].let_go()

    def _memory(self, number: int) -> InstanceMemory:
        """Return the memory of an instance; unknown without a process."""
        running = self._running.get(number)
        if running is None or not running.pid:
            return InstanceMemory(None, None)
        return instance_memory(running.pid)

    async def end(self) -> None:
        """End all instances, each with its drain; doors learn of it first."""
        if await self._say_that_they_go():
            await asyncio.sleep(_FOLLOW_S)
        await asyncio.gather(*(one.end() for one in self._running.values()))
        self._packages.close()

    async def _say_that_they_go(self) -> bool:
        """Report ready instances as draining; return whether doors must have time to react."""
        ready = [one for one in self._running.values() if one.state is InstanceState.READY]
        try:
            for one in ready:
                await self._store.report_instance(
                    one.instance_id,
                    self._options.machine_id,
                    InstanceState.DRAINING,
                    one.address,
                    None,
                    "its machine ends",
                )
        except TidegateError as failure:
            log.warning("the store was not told: %s", failure)
            return False
        return bool(ready)
