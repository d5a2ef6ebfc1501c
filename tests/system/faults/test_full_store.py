"""PostgreSQL without room: puts are refused in words, reads and acknowledgements go on, and when
there is room again so do puts, by themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.errors import LimitReached
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres.store import PostgresStore

DISK_BYTES = 4 * 1024 * 1024
BALLAST_BYTES = DISK_BYTES // 2
# A segment each, and too large to lie in its row.
PAYLOAD_BYTES = 32 * 1024
PUTS_MAX = DISK_BYTES // PAYLOAD_BYTES


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-full-"))
    server = EmbeddedPostgres(folder / "data", settings={"fsync": "off", "shared_buffers": "16MB"})
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def small_disk(server: EmbeddedPostgres) -> Iterator[Path]:
    """Half full, and where the server keeps messages; its log of commits lies elsewhere."""
    disk = Path(tempfile.mkdtemp(prefix="tidegate-small-disk-"))
    account = Path(f"/proc/{server.pid}").stat()
    options = f"size={DISK_BYTES},mode=0755,uid={account.st_uid},gid={account.st_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        disk.rmdir()
        pytest.skip("no right to mount a small disk on this machine")
    try:
        tables = disk / "tables"
        tables.mkdir(mode=0o700)
        os.chown(tables, account.st_uid, account.st_gid)
        (disk / "ballast").write_bytes(b"x" * BALLAST_BYTES)
        yield disk
    finally:
        server.stop()
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


@pytest.fixture
async def node(server: EmbeddedPostgres, small_disk: Path) -> AsyncIterator[Node]:
    node = Node(PostgresStore(server.url), name="node")
    await node.start()
    superuser = server.url.replace("tidegate@", "postgres@")
    async with await psycopg.AsyncConnection.connect(superuser, autocommit=True) as admin:
        place = f"create tablespace small location '{small_disk / 'tables'}'"
        await admin.execute(place.encode())
        await admin.execute("alter table segment set tablespace small")
    yield node
    await node.stop()


def payload(number: int) -> bytes:
    return (b"%08d" % number).ljust(PAYLOAD_BYTES, b".")


async def test_without_room_puts_are_refused_the_rest_goes_on_and_nothing_is_lost(
    node: Node, small_disk: Path
) -> None:
    async with Client(node.address, mode="admin") as mq:
        await mq.create_queue("orders")
        confirmed: list[int] = []

        # When more is put than there is room for
        said = ""
        while not said:
            assert len(confirmed) < PUTS_MAX
            try:
                await mq.put("orders", payload(len(confirmed)))
                confirmed.append(len(confirmed))
            except LimitReached as refusal:
                said = str(refusal)
        assert "short of room" in said
        assert "No space left on device" in said
        refused = len(confirmed)
        assert len(confirmed) > 10

        # Then what is there is read and acknowledged
        first = [await mq.get("orders", lease=60, wait=10) for _ in range(5)]
        for message in first:
            await message.ack_confirmed()
        with pytest.raises(LimitReached):
            await mq.put("orders", payload(refused))
        assert node.why_not_ready() is None

        # And when there is room again, puts are taken at once
        (small_disk / "ballast").unlink()
        for number in range(refused + 1, refused + 6):
            await mq.put("orders", payload(number))
            confirmed.append(number)

        # And all that was confirmed comes once, in order, and nothing that was refused
        while len(first) < len(confirmed):
            first.append(await mq.get("orders", wait=10))
        assert [int(message.payload[:8]) for message in first] == confirmed
        assert not any(message.redelivered for message in first)
        await eventually_async(lambda: not any(r.numbers().waiting for r in node.replicas.values()))
