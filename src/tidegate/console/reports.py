"""Endpoints for learned models and report pages; files are read in a thread."""

from __future__ import annotations

import asyncio
import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from tidegate.console.schemas import ModelView, ResultView
from tidegate.console.security import SLASH, RequestRefused, error_responses
from tidegate.console.sessions import AnyRequest, user_connection_of
from tidegate.core.model import Right
from tidegate.core.topology import logical_name
from tidegate.laws.scaling import throughput_at
from tidegate.telemetry.learned import LearnedModels, NothingLearned
from tidegate.telemetry.models import ModelFile, StoredModel


@get(
    "/models",
    responses=error_responses(),
    operation_id="models",
    needs="see",
    summary="What was learned",
)
async def models(request: AnyRequest) -> list[ModelView]:
    person = await user_connection_of(request)
    folder: Path | None = request.app.state.options.knowledge
    if folder is None:
        return []
    found = await asyncio.to_thread(learned_models, folder)
    return [one for one in found if person.is_admin or person.may(Right.SEE, _queue_of(one))]


def _queue_of(model: ModelView) -> str:
    """Return the queue that a model describes.

    The subject of a model is the name of a queue. A prefetch model also names the client, after a
    slash. The queue's name may contain slashes too.
    """
    if model.kind == "prefetch":
        # Split as the prefetch loop does; without a client the subject is the queue.
        return logical_name(model.subject.rpartition("/")[0] or model.subject)
    return logical_name(model.subject)


@get(
    "/results",
    responses=error_responses(),
    operation_id="results",
    needs="logged in",
    summary="Pages of experiments and reports",
)
async def results(request: AnyRequest) -> list[ResultView]:
    await user_connection_of(request)
    folders = ReportFiles(request.app.state.options.results)
    return await asyncio.to_thread(folders.newest_first)


@get(
    "/results/{path:path}",
    responses={
        **error_responses(404),
        200: ResponseSpec(
            data_container=bytes,
            description="The page, sandboxed.",
            media_type="text/html",
            generate_examples=False,
        ),
    },
    operation_id="result",
    needs="logged in",
    summary="One of these pages",
)
async def result(request: AnyRequest, path: FromPath[str]) -> Response[bytes]:
    await user_connection_of(request)
    folders = ReportFiles(request.app.state.options.results)
    found = await asyncio.to_thread(folders.file, str(path).replace(SLASH, "/"))
    if found is None:
        raise RequestRefused(404, "NOT_FOUND", "there is no such page: see /api/results")
    content, media_type = found
    return Response(content, media_type=media_type)


# Learned models for display: the newest of each kind, with points and curves.


MODELS_MAX = 500
POINTS_MAX = 200
_CURVE_POINTS = 60

Points = list[tuple[float, float]]


def learned_models(folder: Path) -> list[ModelView]:
    """Return the newest model of each subject, accepted or not; nothing if none was learned."""
    try:
        learned = LearnedModels(folder)
    except NothingLearned:
        return []
    found: list[ModelView] = []
    for file in learned.model_files():
        points = _points(learned, file)
        found += [_view(file, model, points.get(model.subject, [])) for model in file.models]
        # Subjects missing from the newest run use an older model.
        newest = {model.subject for model in file.models}
        for subject, model in learned.knowledge.accepted(file.kind).items():
            if subject not in newest:
                found.append(_view(file, model, []))
    found.sort(key=lambda one: (one.kind, not one.accepted, one.subject))
    return found[:MODELS_MAX]


def _view(file: ModelFile, model: StoredModel, points: Points) -> ModelView:
    x, y = _AXES.get(file.kind, ("", ""))
    return ModelView(
        kind=file.kind,
        version=file.version,
        subject=model.subject,
        accepted=model.accepted,
        reason=model.reason,
        learned_at=file.learned_at.timestamp(),
        since=model.from_s or None,
        until=model.to_s or None,
        rows=model.rows,
        quality=_finite(model.quality),
        parameters=_finite(model.parameters),
        points=points[:POINTS_MAX],
        curve=_curve(file.kind, model.parameters, points),
        x=x,
        y=y,
    )


_AXES = {
    "prefetch": ("prefetch", "arrivals a second"),
    "capacity": ("clients", "messages a second"),
}


def _points(learned: LearnedModels, file: ModelFile) -> dict[str, Points]:
    """Return the measured points by subject."""
    columns = {
        "prefetch": ("prefetch_levels", "group", "prefetch", "arrival_per_s"),
        "capacity": ("capacity", "queue", "clients", "throughput_per_s"),
    }.get(file.kind)
    if columns is None:
        return {}
    table, subject, x, y = columns
    subjects = {model.subject for model in file.models}
    found: dict[str, Points] = {}
    for row in learned.rows(table, (subject, x, y), (subject, subjects), (subject, x)):
        found.setdefault(row[subject], []).append((float(row[x]), float(row[y])))
    return {name: _only_finite(points) for name, points in found.items()}


def _curve(kind: str, known: dict[str, float], points: Points) -> Points:
    """Return the model's curve over the measured range."""
    if not points:
        return []
    low, high = points[0][0], max(x for x, _ in points)
    xs = [low + (high - low) * step / _CURVE_POINTS for step in range(_CURVE_POINTS + 1)]
    if kind == "prefetch" and {"a", "b"} <= known.keys() and abs(known["a"]) < 1.0:
        offset_per_s = known.get("offset_per_s", 0.0)
        # Beyond this prefetch the model is not valid.
        xs = [x for x in xs if x <= known.get("prefetch_high", high)]
        return _only_finite((x, (known["b"] * x + offset_per_s) / (1.0 - known["a"])) for x in xs)
    if kind == "capacity" and {"rate_per_s", "contention", "coherency"} <= known.keys():
        law = (known["rate_per_s"], known["contention"], known["coherency"])
        return _only_finite((x, float(throughput_at(x, *law))) for x in xs)
    return []


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _only_finite(points: Iterable[tuple[float, float]]) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


# Pages that `tidegate lab`, `learn` and `report` have written, from configured folders only.
#
# A path is resolved and must still be below its folder, so neither `..` nor a symbolic link leads
# out. Large files and files of other types count as missing.


RESULTS_MAX = 300
BYTES_MAX = 16 * 1024 * 1024
_DEPTH_MAX = 4
_FILES_MAX = 20_000
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


class ReportFiles:
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
            if looked_at > _FILES_MAX:
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
