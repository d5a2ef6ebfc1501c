"""The page's files, served from the package."""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated

from litestar import Response, get
from litestar.params import PathParameter

from tidegate.console.access import AnyRequest
from tidegate.console.problems import Refused

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
FilePath = Annotated[str, PathParameter(max_length=200)]


@get("/", include_in_schema=False)
async def index(request: AnyRequest) -> Response[bytes]:
    return _answer(request, _file(files("tidegate.console") / "page", "index.html"))


@get("/page/{path:path}", include_in_schema=False)
async def page_file(request: AnyRequest, path: FilePath) -> Response[bytes]:
    return _answer(request, _file(files("tidegate.console") / "page", path))


def _not_there() -> Refused:
    return Refused(404, "NOT_FOUND", "there is no such file")


def _file(root: Traversable, path: str) -> tuple[bytes, str]:
    parts = [part for part in path.split("/") if part]
    # Only plain file names: no parent folders, no hidden files.
    if not parts or any(part.startswith(".") or "\\" in part or "\0" in part for part in parts):
        raise _not_there()
    suffix = "." + parts[-1].rpartition(".")[2]
    media_type = _TYPES.get(suffix) or mimetypes.types_map.get(suffix)
    found = root.joinpath(*parts)
    if media_type is None or not found.is_file():
        raise _not_there()
    return found.read_bytes(), media_type


@cache
def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _answer(request: AnyRequest, file: tuple[bytes, str]) -> Response[bytes]:
    content, media_type = file
    tag = _tag(content)
    # Browsers revalidate each time, and get the file only if it has changed. A new version appears
    # at once.
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(b"", status_code=304, headers=headers, media_type=media_type)
    return Response(content, headers=headers, media_type=media_type)
