"""The bookshop's servers as proxy.py is told of them: one plugin, one route, drawn at random.

Drawn at random is what proxy.py itself does with several servers of one route; its own static
routes would put the route's path in place of the request's.
"""

from __future__ import annotations

import os
import random
import re

from proxy.core.connection import TcpServerConnection
from proxy.http import Url
from proxy.http.parser import HttpParser
from proxy.http.server import ReverseProxyBasePlugin

SERVER_PORTS = "TIDEGATE_LAB_SERVER_PORTS"


class ShopRoute(ReverseProxyBasePlugin):
    """Everything goes to one of the servers."""

    def routes(self) -> list[str | tuple[str, list[bytes]]]:
        return [r"/.*"]

    def handle_route(
        self, request: HttpParser, pattern: re.Pattern[str]
    ) -> memoryview | Url | TcpServerConnection:
        port = random.choice(os.environ[SERVER_PORTS].split(","))
        return Url.from_bytes(b"http://127.0.0.1:%s%s" % (port.encode(), request.path or b"/"))
