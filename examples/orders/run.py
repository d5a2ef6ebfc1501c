"""Orders with workers: retries, dead letters, and a worker that is killed in the middle of it.

python examples/orders/run.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster import running, running_cluster, temporary_folder  # noqa: E402

import tidegate  # noqa: E402

ORDERS = 300
UNKNOWN = "zoe"


def main() -> None:
    with temporary_folder() as folder, running_cluster(folder, HERE) as address:
        customers = folder / "customers.txt"
        customers.write_text("ann bob cem")
        os.environ["SHOP_CUSTOMERS"] = str(customers)
        print(f"A node serves at {address}.")
        with (
            tidegate.connect() as mq,
            running(folder, HERE, "worker", "shop:app") as first,
            running(folder, HERE, "worker", "shop:app"),
        ):
            mq.create_queue("shipped")
            mq.create_queue("orders", exist_ok=True)
            people = ("ann", "bob", "cem", "ann", "bob", "cem", "ann", "bob", "cem", UNKNOWN)
            orders = [
                json.dumps({"number": number, "customer": people[number % len(people)]}).encode()
                for number in range(ORDERS)
            ]
            mq.put_many("orders", orders)
            print(f"{ORDERS} orders are confirmed: they are on disk. Two workers ship them.")

            wait_for(mq, "shipped", ORDERS // 4)
            first.kill()
            print("One worker is killed. What it had in its hands comes to the other one.")

            dead = ORDERS // len(people)
            wait_for(mq, "orders.dead", dead)
            wait_for(mq, "shipped", ORDERS - dead)
            (letter, *_) = mq.browse("orders.dead", limit=1)
            print(f"{dead} orders are dead letters: {letter.deaths[-1].error}")

            customers.write_text(customers.read_text() + f" {UNKNOWN}")
            print(f"Now somebody knows {UNKNOWN}: {mq.redrive('orders.dead')} go back.")
            wait_for(mq, "shipped", ORDERS)
            numbers = {json.loads(one.payload)["number"] for one in taken(mq, "shipped")}
            assert numbers == set(range(ORDERS)), "an order is missing, or there twice"
            print(f"All {ORDERS} orders were shipped, each once.")


def wait_for(mq: tidegate.BlockingClient, queue: str, count: int) -> None:
    """Until so many messages wait in a queue."""
    deadline = time.monotonic() + 300
    while (there := waiting(mq, queue)) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{queue} has {there} of {count} messages after five minutes")
        time.sleep(0.1)


def waiting(mq: tidegate.BlockingClient, queue: str) -> int:
    try:
        numbers = mq.stats(queue).queue(queue)
    except tidegate.QueueNotExisting:
        return 0  # dead letters are made when they are first needed
    return 0 if numbers is None else numbers.waiting


def taken(mq: tidegate.BlockingClient, queue: str) -> list[tidegate.BlockingMessage]:
    return [mq.get(queue) for _ in range(waiting(mq, queue))]


if __name__ == "__main__":
    main()
