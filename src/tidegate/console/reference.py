"""The table of API calls in docs/console-api.md, generated from the routes."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from litestar.handlers import HTTPRouteHandler

from tidegate.console import (
    deed_routes,
    hosted_routes,
    learned_routes,
    message_routes,
    queue_routes,
    session_routes,
    view_routes,
    wheel_routes,
)

MODULES = (
    session_routes,
    view_routes,
    message_routes,
    queue_routes,
    wheel_routes,
    hosted_routes,
    deed_routes,
    learned_routes,
)


def handlers(module: ModuleType) -> Iterator[HTTPRouteHandler]:
    """Yield the routes of a module in the order of their definition."""
    for one in vars(module).values():
        if isinstance(one, HTTPRouteHandler):
            yield one


def table() -> str:
    """Return the table: each call, its purpose, and the right that it needs."""
    lines = ["| call | what | needs |", "|---|---|---|"]
    for module in MODULES:
        for one in handlers(module):
            method = ", ".join(sorted(str(each) for each in one.http_methods))
            for path in sorted(one.paths):
                shown = path.replace(":str}", "}").replace(":path}", "}")
                lines.append(
                    f"| `{method} /api{shown}` | {one.summary} | {one.opt.get('needs', '')} |"
                )
    lines.append("| `GET /api/openapi.json` | This, for programs | – |")
    return "\n".join(lines)
