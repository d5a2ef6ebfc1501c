"""An outage is said once and in our words, also to programs that have set up no logging."""

from __future__ import annotations

import asyncio
import sys

from aiormq.exceptions import ChannelInvalidStateError
from rabbitmq import VirtualHost

from tidegate.core.errors import Unavailable
from tidegate.engines.rabbitmq.connection import to_tidegate_error
from tidegate_lab.faults.proxy import TcpProxy

PRODUCER = """
import asyncio, sys
import tidegate

async def main():
    async with tidegate.connect(sys.argv[1], reconnect_s=1.0) as mq:
        await mq.create_queue("orders")
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await mq.put("orders", b"x")
        except tidegate.TidegateError as away:
            print(away, flush=True)

asyncio.run(main())
"""


def test_an_object_in_memory_that_was_closed_is_no_reason() -> None:
    closed = ChannelInvalidStateError('<Connection: "amqp://guest@127.0.0.1/" at 0x7ff8> closed')

    said = to_tidegate_error(closed, "queue 'orders'")

    assert isinstance(said, Unavailable)
    assert str(said) == "queue 'orders': the connection to RabbitMQ was lost"


async def test_a_program_without_logging_gets_no_tracebacks_of_a_library(
    rabbitmq: VirtualHost,
) -> None:
    async with TcpProxy(rabbitmq.url) as cable:
        producer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PRODUCER, cable.url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert producer.stdout is not None
        assert await producer.stdout.readline() == b"connected\n"
    out, err = await producer.communicate(b"\n")

    assert b"RabbitMQ" in out, err
    assert b"the connection to RabbitMQ was lost" in err
    assert b"Traceback" not in err
    assert b"transport" not in err
