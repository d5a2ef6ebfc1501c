"""One process of a measurement: `python -m tidegate.lab.bench.worker <work as JSON>`.

Strategy: the producer and the consumer are processes of their own, as they would be in earnest.
Each imports the one contender it drives, says `ready`, and prints its outcome as its last line.
An alarm ends a process whose parent was killed and cannot do it.
"""

from __future__ import annotations

import importlib
import signal
import sys

import msgspec

from tidegate.lab.bench.side import ConsumerSide, Outcome, ProducerSide, Work

PROCESS_SECONDS_MAX = 180


def run(work: Work) -> Outcome:
    """Do this process's share of the measurement."""
    contender = importlib.import_module(work.module)
    if work.role == "produce":
        producer = ProducerSide(work)
        contender.produce(producer)
        return producer.outcome(work.messages)
    consumer = ConsumerSide(work)
    contender.consume(consumer)
    return consumer.outcome(consumer.checker.received)


if __name__ == "__main__":
    signal.alarm(PROCESS_SECONDS_MAX)
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=Work))).decode())
