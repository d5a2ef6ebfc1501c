"""One process of a measurement: `python -m tidegate.lab.bench.worker <SideTask as JSON>`.

The producer and the consumer are separate processes, as in production. Each imports the one
contender that it drives, prints `ready`, and prints its result as its last line. An alarm ends the
process if its parent was killed and cannot end it.
"""

from __future__ import annotations

import importlib
import signal
import sys

import msgspec

from tidegate.lab.bench.side import ConsumerSide, Outcome, ProducerSide, Work

PROCESS_SECONDS_MAX = 180


def run(work: Work) -> Outcome:
    """Run the producer or the consumer of a measurement and return its result."""
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
