"""What hangs on one connection at replicas of this node, and ends with it."""

from __future__ import annotations

from tidegate.core.errors import UnexpectedPacket
from tidegate.node.consumer import Outlet, Reader
from tidegate.node.replica import Replica


class Ties:
    """Reads that wait, replicas that were used, and queues that go with it."""

    __slots__ = ("_readers", "_replicas", "queues")

    def __init__(self) -> None:
        # By packet id, so that a reader and its callbacks do not hold each other.
        self._readers: dict[int, tuple[Reader, Replica]] = {}
        self._replicas: dict[int, Replica] = {}
        # Those that are deleted when the connection ends.
        self.queues: set[int] = set()

    def use(self, replica: Replica) -> None:
        """The replica must hear when the connection ends."""
        self._replicas[replica.info.queue_id] = replica

    @property
    def replicas(self) -> set[Replica]:
        return set(self._replicas.values())

    def add_reader(self, packet_id: int, reader: Reader, replica: Replica) -> None:
        """Its connection's end is the reader's end."""
        if packet_id in self._readers:
            raise UnexpectedPacket(f"packet {packet_id} is waiting for its answer already")
        self._readers[packet_id] = (reader, replica)
        self._replicas[replica.info.queue_id] = replica

    def reader(self, packet_id: int) -> Reader | None:
        """The read that waits under this packet id."""
        found = self._readers.get(packet_id)
        return None if found is None else found[0]

    def forget_reader(self, packet_id: int) -> None:
        self._readers.pop(packet_id, None)

    def cut(self, outlet: Outlet) -> None:
        """The connection is gone."""
        for reader, replica in self._readers.values():
            replica.dispatch.readers.drop(reader)
        for replica in self.replicas:
            replica.dispatch.forget_outlet(outlet)
