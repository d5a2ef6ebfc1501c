"""Kill processes of a deployment by their process ids."""

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
    """Kill a process with SIGKILL: no handler runs and no buffer is flushed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_postgres(postmaster: int) -> None:
    """Kill the postmaster and all its backends with SIGKILL, so that their memory is lost."""
    try:
        parent = psutil.Process(postmaster)
        children = parent.children(recursive=True)
        # Suspend all first, so that no backend completes work while the others are killed.
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in (parent, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    except psutil.NoSuchProcess:
        return


def terminate_backends(store_url: str) -> int:
    """End all other connections of this user to PostgreSQL and return their number."""
    with psycopg.connect(store_url, autocommit=True, connect_timeout=5) as connection:
        rows = connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = current_user and pid <> pg_backend_pid()"
        ).fetchall()
    return len(rows)


class Injector:
    """Kills processes of one deployment, one at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._turn = 0
        # Node ids of killed leaders. The store names them as leaders until their leases end. By
        # then another node may listen at the same address and must not be killed instead.
        self.leaders_killed: list[int] = []

    def strike(self, kind: Kind, *, timeout_s: float = 60.0) -> str:
        """Kill a process of this kind as soon as one runs, and return a description of it.

        Nodes are killed in turn. "backends" ends the connections of PostgreSQL instead.
        `TimeoutError` means that no such process ran for `timeout_s`.
        """
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
        """Kill the leader that the store names, but no leader twice."""
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
