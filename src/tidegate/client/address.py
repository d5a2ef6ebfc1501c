"""`tidegate://host:port[,host:port…]`: where nodes listen."""

from __future__ import annotations

from tidegate.core.errors import InvalidValue

DEFAULT_PORT = 7411
SCHEME = "tidegate://"


def parse_url(url: str) -> list[tuple[str, int]]:
    """The nodes that a URL names."""
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise InvalidValue(f"{url!r} is no Tidegate URL: write tidegate://host:port")
    rest = url[len(SCHEME) :].rstrip("/")
    if not rest:
        raise InvalidValue(f"{url!r} names no host: write tidegate://host:port")
    if "@" in rest:
        raise InvalidValue("a Tidegate URL names no user yet: write tidegate://host:port")
    nodes = []
    for part in rest.split(","):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidValue(f"{port!r} in {url!r} is no port: 1 to 65535")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare:
            raise InvalidValue(f"{url!r} names no host: write tidegate://host:port")
        if ":" in bare and bare == host:
            raise InvalidValue(f"{host!r} in {url!r}: write tidegate://[{host}]:{port}")
        nodes.append((bare, int(port)))
    return nodes
