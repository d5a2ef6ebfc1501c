"""The resources that one session has at this node's replicas."""

from __future__ import annotations

from tidegate.core.errors import UnexpectedPacket
from tidegate.node.consumer import Outlet, Reader
from tidegate.node.replica import Replica


class Ties:
    """Pending reads, used replicas and temporary queues of one session."""

    __slots__ = ("_readers", "_replicas", "queues")

    def __init__(self) -> None:
        # By packet id: a reference to the callbacks would form a cycle with the reader.
        self._readers: dict[int, tuple[Reader, Replica]] = {}
        self._replicas: dict[int, Replica] = {}
        # Deleted when the session ends.
        self.queues: set[int] = set()

    def use(self, replica: Replica) -> None:
        """Note that the replica has to be told when the session ends."""
        self._replicas[replica.info.queue_id] = replica

    @property
    def replicas(self) -> set[Replica]:
        return set(self._replicas.values())

    def add_reader(self, packet_id: int, reader: Reader, replica: Replica) -> None:
        """Note a pending read, which is dropped when the session ends.

        Raises `UnexpectedPacket` if the packet id is in use.
        """
        if packet_id in self._readers:
            raise UnexpectedPacket(f"packet {packet_id} is waiting for its answer already")
        self._readers[packet_id] = (reader, replica)
        self._replicas[replica.info.queue_id] = replica

    def reader(self, packet_id: int) -> Reader | None:
        """Return the pending read of a packet; None if there is none."""
        found = self._readers.get(packet_id)
        return None if found is None else found[0]

    def forget_reader(self, packet_id: int) -> None:
        self._readers.pop(packet_id, None)

    def cut(self, outlet: Outlet) -> None:
        """Drop the session's reads and return the messages that its consumers hold."""
        for reader, replica in self._readers.values():
            replica.dispatch.readers.drop(reader)
        for replica in self.replicas:
            replica.dispatch.forget_outlet(outlet)
