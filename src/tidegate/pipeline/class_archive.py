"""Spark's classes as Java keeps them in memory, in a file; it halves the start-up time of Spark.

    python -m tidegate.pipeline.write_class_archive      once per environment; 160 MB

At each start of Spark, Java finds, verifies and links about ten thousand classes. With class data
sharing Java can write the linked classes to a file when it ends, and map the file at the next
start. The file lies in the Python environment that holds Spark and is deleted with it. Its name
contains a hash of the Java and of Spark's jars. Only the command above writes it; `learn` and
`watch` never do, because it takes too long.

Java checks the file itself. If the file is missing, damaged or does not fit, Spark starts without
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tidegate.pipeline.java import Java

_FOLDER = Path(sys.prefix, "share", "tidegate")
_JARS = Path(pyspark.__file__).parent / "jars"
# From this version on, a Java that ships without an archive of its own classes can write one too.
_CACHE_VERSION = 25


@dataclass(frozen=True)
class ClassArchive:
    """The archive file of one Java and one Spark; the file may not exist."""

    path: Path
    java_version: int

    @property
    def options(self) -> tuple[str, ...]:
        """The Java options that map the archive; empty if the file does not exist."""
        if not self.path.exists():
            return ()
        return self._told("AOTCache" if self._is_cache else "SharedArchiveFile", self.path)

    def options_to_write(self, path: Path) -> tuple[str, ...]:
        """Return the Java options that write the archive to `path` when Java ends."""
        return self._told("AOTCacheOutput" if self._is_cache else "ArchiveClassesAtExit", path)

    @contextlib.contextmanager
    def being_written(self) -> Iterator[Path]:
        """Yield a temporary path, and move the file that the block writes there into place.

        Nothing is moved if the block raises or writes no file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.path.parent) as folder:
            written = Path(folder) / self.path.name
            yield written
            # Two processes that write at the same time write the same content, so the last one may
            # win.
            if written.exists():
                written.replace(self.path)

    @property
    def _is_cache(self) -> bool:
        return self.java_version >= _CACHE_VERSION

    def _told(self, option: str, path: Path) -> tuple[str, ...]:
        # Suppress warnings about classes that were left out and about an archive that does not fit.
        silent = ("-Xlog:cds*=off", "-Xlog:aot*=off") if self._is_cache else ("-Xlog:cds*=off",)
        return (f"-XX:{option}={path}", *silent)


def archive_of(java: Java) -> ClassArchive:
    """Return the archive that belongs to `java` and to the jars of the installed Spark."""
    told = hashlib.sha256(f"{java.home.resolve()} {java.version} {_JARS}".encode())
    for jar in sorted(_JARS.glob("*.jar")):
        stat = jar.stat()
        told.update(f"{jar.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    name = f"spark-{pyspark.__version__}-java-{java.version}-{told.hexdigest()[:12]}.jsa"
    return ClassArchive(_FOLDER / name, java.version)
