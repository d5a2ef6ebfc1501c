"""Code packages: a folder or a wheel as one archive, identified by its SHA-256.

The same files always give the same bytes, independent of user and machine. Code that is deployed
twice is therefore stored once and restarts nothing. A wheel is sent unchanged.

An archive to unpack came over the network. Its hash must match, and no name in it may lead out of
its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import stat
import struct
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from tidegate.core.errors import InvalidValue, TooLarge, Unavailable
from tidegate.core.text import escape_control_characters
from tidegate.storage.postgres_server import is_data_folder, mark_data_folder

# Of all files together, unpacked.
UNPACKED_BYTES_MAX = 1024 * 1024 * 1024
PACKED_BYTES_MAX = 256 * 1024 * 1024
FILES_MAX = 50_000
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES = 1 << 20
# Errors of zipfile for manipulated archives. RuntimeError means that it is encrypted.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
)


def pack_code(path: Path) -> bytes:
    """Return a folder or a wheel as an archive.

    Raises `InvalidValue` with the reason if it cannot be packed, `TooLarge` if it is too large.
    """
    try:
        is_wheel, is_folder = path.is_file() and path.suffix == ".whl", path.is_dir()
        is_data = is_folder and is_data_folder(path)
    except OSError as failure:
        raise _not_shipped(path, failure) from None
    if is_wheel:
        content = _content_of(path, PACKED_BYTES_MAX)
        _open(content).close()
        return content
    if not is_folder:
        raise InvalidValue(
            f"{_named(path)} is neither a folder nor a wheel (.whl): nothing can be shipped"
        )
    if is_data:
        raise InvalidValue(
            f"{_named(path)} is a data folder of Tidegate, with all its secrets: ship the code "
            "alone, and keep data elsewhere (--data)"
        )
    return _packed_folder(path.resolve())


def _packed_folder(folder: Path) -> bytes:
    archive = io.BytesIO()
    unpacked_bytes = count = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in _code_in(folder):
            content = _content_of(path, UNPACKED_BYTES_MAX)
            unpacked_bytes += len(content)
            count += 1
            if unpacked_bytes > UNPACKED_BYTES_MAX or count > FILES_MAX:
                raise _too_large(folder)
            name = path.relative_to(folder).as_posix()
            try:
                # The archive stores names as UTF-8.
                name.encode()
            except UnicodeEncodeError as failure:
                raise _not_shipped(path, failure) from None
            about = zipfile.ZipInfo(name, _LONG_AGO)
            about.compress_type = zipfile.ZIP_DEFLATED
            # Readable by all, and executable by all if the owner may execute it.
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            about.external_attr = (stat.S_IFREG | mode) << 16
            # Reject here what machines would reject later.
            _check(about)
            file.writestr(about, content)
    if not count:
        raise InvalidValue(f"{folder} holds no files: nothing can be shipped")
    if archive.tell() > PACKED_BYTES_MAX:
        raise _too_large(folder)
    return archive.getvalue()


def _code_in(folder: Path) -> Iterator[Path]:
    """Yield the files to pack, in a fixed order."""
    for here, folders, files in walk_code(folder, _refuse_folder):
        for name in sorted([*folders, *files]):
            path = here / name
            try:
                is_code = _is_packed_file(path, folder)
            # Some Python versions raise RuntimeError for a loop of links.
            except (OSError, RuntimeError) as failure:
                raise _not_shipped(path, failure) from None
            if is_code:
                yield path


def _is_packed_file(path: Path, folder: Path) -> bool:
    if path.is_symlink():
        target = _target_of(path)
        if not target.is_relative_to(folder):
            raise InvalidValue(
                f"{_named(path)} is a link to {_named(target)}, which is not shipped: copy it there"
            )
        # A linked folder inside is packed once, as the folder itself.
        if path.is_dir():
            raise InvalidValue(f"{_named(path)} links to a folder: ship the folder itself")
    return path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")


def _target_of(link: Path) -> Path:
    # A broken link is skipped.
    with contextlib.suppress(FileNotFoundError):
        # `resolve` detects loops of links only in some Python versions; `stat` always does.
        link.stat()
    return link.resolve()


def _content_of(path: Path, bytes_max: int) -> bytes:
    try:
        # Check the size first: a file larger than memory would end this process.
        if path.stat().st_size > bytes_max:
            raise TooLarge(f"{_named(path)} has more than {bytes_max} bytes: leave data out")
        return path.read_bytes()
    except OSError as failure:
        raise _not_shipped(path, failure) from None


def _refuse_folder(failure: OSError) -> None:
    raise _not_shipped(Path(failure.filename), failure)


def _not_shipped(path: Path, failure: Exception) -> InvalidValue:
    if isinstance(failure, UnicodeEncodeError):
        why = "its name is not UTF-8"
    elif isinstance(failure, RuntimeError) or getattr(failure, "errno", None) == errno.ELOOP:
        why = "it is a link that leads back to itself"
    else:
        why = getattr(failure, "strerror", None) or str(failure)
    return InvalidValue(f"{_named(path)} cannot be shipped: {escape_control_characters(why)}")


def _named(path: Path) -> str:
    return escape_control_characters(str(path))


def unpack(content: bytes, digest: str, folder: Path) -> None:
    """Unpack an archive into `folder` as a whole; raise `InvalidValue` if it is damaged."""
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InvalidValue(
            f"the code {digest[:12]}… is damaged: its SHA-256 is {found[:12]}…; deploy it again"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        _open(content) as archive,
        tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder.parent) as made,
    ):
        whole = Path(made) / "code"
        whole.mkdir()
        for member in archive.infolist():
            _unpack_one(archive, member, whole)
        try:
            # Rename at the end, so that `folder` is never incomplete.
            whole.rename(folder)
        except OSError:
            # Another thread, started for an instance that has ended, was faster.
            if not folder.is_dir():
                raise


def _open(content: bytes) -> zipfile.ZipFile:
    """Open an archive after checking all of its names and sizes."""
    if len(content) > PACKED_BYTES_MAX:
        raise TooLarge(f"an archive of more than {PACKED_BYTES_MAX} bytes is not shipped")
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _BROKEN as failure:
        raise InvalidValue(f"this is no archive of code: {failure}") from None
    members = archive.infolist()
    if len(members) > FILES_MAX:
        raise TooLarge(f"an archive of more than {FILES_MAX} files is not unpacked")
    # The declared sizes; unpacking counts the actual ones again.
    if sum(member.file_size for member in members) > UNPACKED_BYTES_MAX:
        raise TooLarge(f"an archive of more than {UNPACKED_BYTES_MAX} bytes is not unpacked")
    for member in members:
        _check(member)
    return archive


def _check(member: zipfile.ZipInfo) -> None:
    name = PurePosixPath(member.filename)
    leads_out = name.is_absolute() or ".." in name.parts or not name.parts
    if leads_out or "\\" in member.filename or ":" in name.parts[0] or "\0" in member.filename:
        raise InvalidValue(f"an archive with a file {member.filename!r} is not unpacked")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidValue(
            f"an archive with {member.filename!r}, which is a link or a device, is not unpacked"
        )


def _unpack_one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    path = folder / PurePosixPath(member.filename)
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    left = member.file_size
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, path.open("xb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise InvalidValue(f"{member.filename!r} is larger than it says")
                target.write(chunk)
    except (FileExistsError, NotADirectoryError):
        raise InvalidValue(f"an archive with two of {member.filename!r} is not unpacked") from None
    except _BROKEN as failure:
        raise InvalidValue(f"{member.filename!r} cannot be unpacked: {failure}") from None
    if (member.external_attr >> 16) & stat.S_IXUSR:
        path.chmod(0o755)


def _too_large(folder: Path) -> TooLarge:
    return TooLarge(
        f"{folder} has more than {FILES_MAX} files or {UNPACKED_BYTES_MAX} bytes: "
        "leave data and virtual environments out of it"
    )


# The packages of a machine: fetched when missing, kept while an instance uses them.
#
#     <data>/packages/lock                    held while a machine starts, ends or cleans up
#     <data>/packages/machine-7/lock          held while machine 7 lives
#     <data>/packages/machine-7/<digest>/     the unpacked files, always complete
#
# A killed machine leaves its folder. Another machine removes the folder when it finds that its lock
# is free. The next machine of the same number empties it too, because code that ran there may have
# changed files.


class PackageSource(Protocol):
    """Stores packages by their SHA-256."""

    async def package(self, digest: str) -> bytes | None: ...


class PackageCache:
    """The unpacked packages of one machine."""

    def __init__(self, folder: Path, machine_id: int, source: PackageSource) -> None:
        self._all = folder.expanduser().resolve() / "packages"
        self._own = self._all / f"machine-{machine_id}"
        self._source = source
        self._fetching = asyncio.Lock()
        self._lock_fd: int | None = None

    async def folder_of(self, digest: str) -> Path:
        """Return the folder of a package, fetching it if it is missing.

        Raises `Unavailable` or `InvalidValue` with the reason if it cannot be had.
        """
        folder = self._own / digest
        # Fetch once if two instances start at the same time.
        async with self._fetching:
            if self._lock_fd is None:
                await self._on_disk(digest, self._take)
            if not folder.is_dir():
                content = await self._source.package(digest)
                if content is None:
                    raise Unavailable(f"the store has no code {digest[:12]}…: deploy it again")
                await self._on_disk(digest, unpack, content, digest, folder)
        return folder

    async def _on_disk(self, digest: str, do: Callable[..., None], *given: object) -> None:
        try:
            await asyncio.to_thread(do, *given)
        except OSError as failure:
            raise Unavailable(
                f"the code {digest[:12]}… cannot be unpacked in {self._own}: {failure.strerror}"
            ) from None

    def forget_all_but(self, digests: Collection[str]) -> None:
        """Remove packages that are not in use."""
        if self._lock_fd is None:
            return
        for path in self._own.iterdir():
            if path.is_dir() and path.name not in digests and not path.name.startswith("."):
                # A folder that cannot be renamed stays complete.
                with contextlib.suppress(OSError):
                    _remove(path)

    def close(self) -> None:
        if self._lock_fd is not None:
            # If the whole folder was removed, there is no lock to take.
            with contextlib.suppress(OSError), self._alone():
                shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = None

    def _take(self) -> None:
        """Lock and empty this machine's folder, and remove those of dead machines."""
        mark_data_folder(self._all.parent)
        self._all.mkdir(exist_ok=True)
        with self._alone():
            if self._lock_fd is not None:
                return
            self._own.mkdir(exist_ok=True)
            self._lock_fd = _locked(self._own / "lock")
            if self._lock_fd is None:
                raise Unavailable(f"another machine uses {self._own}: give each its own store.data")
            for left in self._own.iterdir():
                if left.is_dir():
                    _remove(left)
            for other in self._all.iterdir():
                if other != self._own and other.is_dir():
                    _clear_up(other)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the common lock, so that no other machine removes a folder being created."""
        with (self._all / "lock").open("ab") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield


def _remove(code: Path) -> None:
    """Remove a folder in two steps, so that it is never found incomplete."""
    away = code.with_name(f".removed-{uuid.uuid4().hex}")
    code.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _clear_up(folder: Path) -> None:
    lock_fd = _locked(folder / "lock")
    if lock_fd is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock_fd)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock while open; None if it is already held."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None


# Which files of a user's folder are code.
#
# Left out are hidden files, files made by Python, installed packages (an environment of any name)
# and Tidegate's own data folders. Otherwise database, password, logs and unpacked code would be
# shipped with the application next to them, and each run would make another version.


_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
# Each marks an environment: of venv and virtualenv, and of conda.
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


def walk_code(
    folder: Path, refuse: Callable[[OSError], None] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder of code with the sorted names of folders and files in it.

    `refuse` is called with the error of an unreadable folder; None means to skip it.
    """
    for place, folders, files in os.walk(folder, onerror=refuse):
        here = Path(place)
        folders[:] = sorted(name for name in folders if _is_code_file(here / name))
        yield here, folders, sorted(files)


def _is_code_file(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _LEFT_OUT:
        return False
    try:
        is_environment = any((folder / mark).exists() for mark in _ENVIRONMENT_MARKS)
        return not (is_environment or is_data_folder(folder))
    except OSError:
        # The error is reported when the folder is read.
        return True
