"""What an application does not use is not imported."""

from __future__ import annotations

import subprocess
import sys


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
