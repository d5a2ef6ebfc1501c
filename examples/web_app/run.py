"""A web application behind the gateway: it grows with its visitors, and one instance is killed.

python examples/web_app/run.py
"""

from __future__ import annotations

import collections
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cluster import first_line, running, temporary_folder  # noqa: E402

FEW, MANY = 6, 30
CALM_S = 2.0
COMMAND = ("host", "bookshop:app", "--agreement", "bookshop.toml", "--port", "0")
# Few requests at a time, so that visitors wait for instances and not for your processor.
OPTIONS = ("--concurrency", "5", "--health-path", "/well")


class Visitors:
    """Some who ask again as soon as they are answered, each on a connection of its own."""

    def __init__(self, address: str) -> None:
        self._address = urlsplit(address)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.statuses: collections.Counter[int] = collections.Counter()
        self.sellers: collections.Counter[int] = collections.Counter()

    def come(self, count: int) -> None:
        came = [threading.Thread(target=self._visit) for _ in range(count)]
        for thread in came:
            thread.start()
        self._threads += came

    def leave(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _visit(self) -> None:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=120
        )
        while not self._over.is_set():
            try:
                connection.request("GET", "/")
                answer = connection.getresponse()
                words = answer.read().decode()
                self.statuses[answer.status] += 1
                if found := re.search(r"process (\d+)", words):
                    self.sellers[int(found[1])] += 1
            except (OSError, http.client.HTTPException):
                self.statuses[0] += 1
                connection.close()
        connection.close()


def main() -> None:
    with (
        temporary_folder() as folder,
        running(folder, HERE, *COMMAND, *OPTIONS, "--data", str(folder / "data")) as host,
    ):
        address = first_line(host)
        data = folder / "data"
        print(f"The bookshop is at {address}: {instances(data)} instances behind one address.")
        visitors = Visitors(address)
        try:
            visitors.come(FEW)
            time.sleep(CALM_S)
            print(f"{FEW} visitors: {told(data)}")
            visitors.come(MANY - FEW)
            until(lambda: instances(data) > 2, "another instance serves")
            print(f"{MANY} visitors: {instances(data)} instances serve now.")
            print(f"Why: {reason_for_more(data)}")

            (victim, _), *_ = visitors.sellers.most_common(1)
            os.kill(victim, signal.SIGKILL)
            before = sum(visitors.sellers.values())
            until(lambda: sum(visitors.sellers.values()) > before + 100, "visitors are answered")
            until(lambda: instances(data) > 2, "another one stands in for it")
            print(f"Process {victim} was killed; {instances(data)} instances serve.")
        finally:
            visitors.leave()
        answered = visitors.statuses[200]
        failed = visitors.statuses.total() - answered
        print(f"{answered} requests were answered, {failed} failed. {told(data)}")
        assert failed == 0, visitors.statuses


def asked(*command: str, data: Path) -> list[dict]:
    """What a command says, as JSON."""
    said = subprocess.run(
        [sys.executable, "-m", "tidegate", *command],
        env=os.environ | {"TIDEGATE_STORE__DATA": str(data)},
        capture_output=True,
        check=True,
    )
    return json.loads(said.stdout)


def instances(data: Path) -> int:
    (service,) = asked("services", "--json", data=data)
    return sum(one["state"] == "ready" for one in service["instances"])


def reason_for_more(data: Path) -> str:
    """Of the newest decision by which instances were added."""
    decisions = asked("explain", "bookshop", "--json", "-n", "20", data=data)
    adding = (one for one in decisions if any("Add" in act["type"] for act in one["actions"]))
    return next(adding)["reason"]


def told(data: Path) -> str:
    (row,) = asked("sla", "--json", data=data)
    budget = row["budget_left"]
    left = "" if budget is None else f", {budget:.1%} of the error budget left"
    return f"agreement {row['state']}{left}."


def until(is_so, what: str) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within five minutes: {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
