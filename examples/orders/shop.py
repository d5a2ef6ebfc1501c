"""The workers of the example: ship orders, and tell about it."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import tidegate

app = tidegate.App()
# Who may order; the example adds somebody later.
CUSTOMERS = Path(os.environ.get("SHOP_CUSTOMERS", "customers.txt"))


@dataclass
class Order:
    number: int
    customer: str


def is_known(customer: str) -> bool:
    return customer in CUSTOMERS.read_text().split()


@app.worker("orders", concurrency=4, policy=tidegate.QueuePolicy(retry_first_s=0.2))
async def ship(order: Order, message: tidegate.Message) -> None:
    if not is_known(order.customer):
        raise tidegate.Reject(f"nobody knows {order.customer}")
    if order.number % 50 == 0 and message.delivery_count == 1:
        raise ConnectionError("the bank does not answer")  # tried again, a little later
    await asyncio.sleep(0.02)
    # Delivery is at least once: the dedup id makes what comes of it happen once.
    await app.put("shipped", order, dedup_id=str(order.number))
