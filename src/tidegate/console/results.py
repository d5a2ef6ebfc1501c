"""Pages that `tidegate lab`, `learn` and `report` have written, from configured folders only.

A path is resolved and must still be below its folder, so neither `..` nor a symbolic link leads
out. Large files and files of other types count as missing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidegate.console.model import ResultView

RESULTS_MAX = 300
BYTES_MAX = 16 * 1024 * 1024
_DEPTH_MAX = 4
_LOOKED_AT_MAX = 20_000
_TITLE_BYTES = 4096
_TITLE = re.compile(r"<title>([^<]{1,200})</title>", re.IGNORECASE)
_PAGES = (".html", ".pdf")
TYPES = {
    ".html": "text/html",
    ".pdf": "application/pdf",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".csv": "text/plain",
    ".txt": "text/plain",
    ".md": "text/plain",
}


class Results:
    """Report files in some folders; each path begins with the number of its folder."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.expanduser() for folder in folders]

    def newest_first(self) -> list[ResultView]:
        found = []
        for number, folder in enumerate(self._folders):
            for file in _files(folder):
                try:
                    about = file.stat()
                except OSError:
                    continue  # removed meanwhile by its writer
                if about.st_size > BYTES_MAX:
                    continue
                inside = file.relative_to(folder).as_posix()
                found.append(
                    ResultView(
                        name=inside,
                        title=_title(file),
                        at=about.st_mtime,
                        path=f"{number}/{inside}",
                        size_bytes=about.st_size,
                    )
                )
        found.sort(key=lambda one: -one.at)
        return found[:RESULTS_MAX]

    def file(self, path: str) -> tuple[bytes, str] | None:
        """Return a file's content and type; None if there is no such file."""
        number, _, inside = path.strip("/").partition("/")
        folders = {str(place): folder for place, folder in enumerate(self._folders)}
        if number not in folders:
            return None
        parts = inside.split("/")
        if not inside or "\0" in inside or any(part.startswith(".") for part in parts):
            return None
        try:
            root = folders[number].resolve(strict=True)
            file = (root / inside).resolve(strict=True)
            if not file.is_relative_to(root) or not file.is_file():
                return None
            media_type = TYPES.get(file.suffix.lower())
            if media_type is None or file.stat().st_size > BYTES_MAX:
                return None
            return file.read_bytes(), media_type
        except (OSError, ValueError):
            return None


def _files(folder: Path) -> Iterator[Path]:
    looked_at = 0
    waiting = [(folder, 1)]
    while waiting:
        here, depth = waiting.pop()
        try:
            entries = sorted(here.iterdir())
        except OSError:
            continue
        for entry in entries:
            looked_at += 1
            if looked_at > _LOOKED_AT_MAX:
                return
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir() and depth < _DEPTH_MAX:
                waiting.append((entry, depth + 1))
            elif entry.suffix.lower() in _PAGES and entry.is_file():
                yield entry


def _title(file: Path) -> str:
    if file.suffix.lower() != ".html":
        return file.stem
    try:
        with file.open("rb") as source:
            found = _TITLE.search(source.read(_TITLE_BYTES).decode("utf-8", "replace"))
    except OSError:
        return file.stem
    return html.unescape(found[1]).strip() if found else file.stem
