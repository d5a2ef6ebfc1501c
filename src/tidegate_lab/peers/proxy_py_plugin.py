"""A proxy.py plugin that routes each request to a random server of the bookshop.

proxy.py also picks a random server if a static route has several. Its static routes cannot be used
here, because they replace the path of the request by the path of the route.
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
    """A route from every path to a random server."""

    def routes(self) -> list[str | tuple[str, list[bytes]]]:
        return [r"/.*"]

    def handle_route(
        self, request: HttpParser, pattern: re.Pattern[str]
    ) -> memoryview | Url | TcpServerConnection:
        port = random.choice(os.environ[SERVER_PORTS].split(","))
        return Url.from_bytes(b"http://127.0.0.1:%s%s" % (port.encode(), request.path or b"/"))
