"""A real RabbitMQ for tests: one broker for all of them, a virtual host for each.

Strategy: a broker boots in some seconds, a virtual host in some milliseconds, and what is in one
is invisible in another. So the broker is started once a session (once a worker of xdist) and each
test gets a virtual host that is deleted with everything in it after the test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from missing_peer import skip_or_fail
from waiting import LIMIT_S

from tidegate_lab.peers.servers import (
    CONSISTENT_HASH_EXCHANGE,
    MANAGEMENT,
    RabbitmqServer,
    ServerMissing,
    rabbitmq_server,
)

PLUGINS = (MANAGEMENT, CONSISTENT_HASH_EXCHANGE)
# Numbers of the management API are at most this old; RabbitMQ's own 5 s would be waited for.
SETTINGS = {"collect_statistics_interval": "250"}

_numbers = itertools.count(1)


@contextlib.contextmanager
def broker_or_skip(settings: Mapping[str, str] = SETTINGS) -> Iterator[RabbitmqServer]:
    """A broker that may be killed; where there is none to start the test is skipped, in CI fails.

    It is killed at the end, for it has nothing to keep and is slow to stop.
    """
    try:
        with rabbitmq_server(PLUGINS, settings=settings, frugal=True) as server:
            yield server
            if server.is_running:
                server.kill()
    except ServerMissing as missing:
        skip_or_fail(str(missing))


class VirtualHost:
    """A broker within the broker, of one test."""

    def __init__(self, server: RabbitmqServer) -> None:
        self._server = server
        self.name = f"test-{next(_numbers)}"
        self._users: list[str] = []
        self.call("PUT", f"vhosts/{self.name}")
        self.call(
            "PUT",
            f"permissions/{self.name}/guest",
            {"configure": ".*", "write": ".*", "read": ".*"},
        )

    @property
    def url(self) -> str:
        return self.url_of("guest", "guest")

    @property
    def management_url(self) -> str:
        """Of the HTTP API; its paths name the virtual host themselves."""
        return self._server.management_url

    def url_of(self, user: str, password: str) -> str:
        return f"amqp://{user}:{password}@127.0.0.1:{self._server.port}/{self.name}"

    def user(
        self, *, configure: str = "", write: str = "", read: str = "", tags: str = "management"
    ) -> str:
        """The URL of a new user, who may do what these patterns match, by default nothing."""
        name = f"user-{next(_numbers)}"
        self.call("PUT", f"users/{name}", {"password": name, "tags": tags})
        self._users.append(name)
        permissions = {"configure": configure, "write": write, "read": read}
        self.call("PUT", f"permissions/{self.name}/{name}", permissions)
        return self.url_of(name, name)

    def queues(self) -> dict[str, Any]:
        """What the management API tells about each queue."""
        return {queue["name"]: queue for queue in self.call("GET", f"queues/{self.name}")}

    def connections(self) -> list[str]:
        """Names of those that the management API knows of."""
        found = self.call("GET", f"vhosts/{self.name}/connections")
        return [connection["name"] for connection in found]

    def close_connections(self) -> int:
        """Cut every connection; how many there were."""
        names = self.connections()
        for name in names:
            self.call("DELETE", f"connections/{quote(name, safe='')}", missing_ok=True)
        return len(names)

    def delete(self) -> None:
        self.call("DELETE", f"vhosts/{self.name}", missing_ok=True)
        for name in self._users:
            self.call("DELETE", f"users/{name}", missing_ok=True)

    def call(self, method: str, path: str, body: object = None, *, missing_ok: bool = False) -> Any:
        """Of the HTTP API, as guest."""
        url = f"http://127.0.0.1:{self._server.management_port}/api/{path}"
        request = urllib.request.Request(url, method=method)
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        request.data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as failure:
            if failure.code == 404 and missing_ok:
                return None
            raise AssertionError(f"{method} {path}: {failure.code} {failure.read()!r}") from None
        return json.loads(text) if text else None
