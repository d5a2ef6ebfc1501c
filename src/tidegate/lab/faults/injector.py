"""Does harm to processes that we started: by their ids, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Literal

import psutil
import psycopg

from tidegate.lab.faults.deployment import Deployment

Kind = Literal["node", "leader", "postgres", "backends"]

_ASK_AGAIN_S = 0.02


def kill_process(pid: int) -> None:
    """kill -9: no handler runs, nothing is flushed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_postgres(postmaster: int) -> None:
    """The postmaster and all its backends at once: what was only in their memory is gone."""
    try:
        parent = psutil.Process(postmaster)
        children = parent.children(recursive=True)
        # Stopped first, so that nobody finishes anything while we go down the list.
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    except psutil.NoSuchProcess:
        return


def terminate_backends(store_url: str) -> int:
    """End every connection of the nodes to PostgreSQL; how many there were."""
    with psycopg.connect(store_url, autocommit=True, connect_timeout=5) as connection:
        rows = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = current_user and pid <> pg_backend_pid()"
        ).fetchall()
    return len(rows)


class Injector:
    """Hurts a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._turn = 0
        # Member ids. They lead by the store's word until their leases end, and by then somebody
        # else may listen at their addresses.
        self.leaders_killed: list[int] = []

    def strike(self, kind: Kind, *, timeout_s: float = 60.0) -> str:
        """Kill one of a kind as soon as there is one; what was killed."""
        deadline = time.monotonic() + timeout_s
        while (victim := self._try(kind)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"for {timeout_s:.0f} s there was no {kind} to kill")
            time.sleep(_ASK_AGAIN_S)
        return victim

    def _try(self, kind: Kind) -> str | None:
        if kind == "node":
            addresses = self._deployment.addresses
            address = addresses[self._turn % len(addresses)]
            pid = self._deployment.node_pid(address)
            if pid is None:
                return None
            self._turn += 1
            kill_process(pid)
            return f"node {address} ({pid})"
        if kind == "leader":
            return self._try_leader()
        if kind == "postgres":
            postmaster = self._deployment.postmaster_pid()
            if postmaster is None:
                return None
            kill_postgres(postmaster)
            return f"PostgreSQL ({postmaster})"
        return self._try_backends()

    def _try_leader(self) -> str | None:
        """Whoever leads by the store's word: who was started again has a larger id, and waits."""
        try:
            leader = self._deployment.leader()
        except psycopg.Error:
            return None
        if leader is None or leader[0] in self.leaders_killed:
            return None
        member_id, address = leader
        pid = self._deployment.member_pid(address)
        if pid is None:
            return None
        kill_process(pid)
        self.leaders_killed.append(member_id)
        return f"leader {member_id} at {address} ({pid})"

    def _try_backends(self) -> str | None:
        try:
            count = terminate_backends(self._deployment.store_url)
        except psycopg.Error:
            return None
        return f"{count} connections to PostgreSQL" if count else None
