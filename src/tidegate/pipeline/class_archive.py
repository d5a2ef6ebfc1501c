"""Spark's classes in a file as Java holds them in memory: half of what a start costs is saved.

    python -m tidegate.pipeline.write_class_archive      once for an environment: 160 MB

Whenever Spark starts, Java finds, checks and links some ten thousand classes. It can write them
down when it ends (class data sharing) and map them at the next start. The file stands in the
environment that holds Spark, and goes with it; its name says for which Java and which jars it was
made. It is made when somebody asks for it, never on the time of who wants to learn or to watch.

Java itself looks whether the file is as it should be, and goes without it if not: with a broken
one, or with none, Spark starts as ever.
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
# From this version on, a Java without an archive of its own classes can write one, too.
_CACHE_VERSION = 25


@dataclass(frozen=True)
class ClassArchive:
    """The file of one Java and one Spark, which may be there or not."""

    path: Path
    java_version: int

    @property
    def options(self) -> tuple[str, ...]:
        """What Java is told to map it; nothing if there is none."""
        if not self.path.exists():
            return ()
        return self._told("AOTCache" if self._is_cache else "SharedArchiveFile", self.path)

    def options_to_write(self, path: Path) -> tuple[str, ...]:
        """What Java is told to write it when it ends."""
        return self._told("AOTCacheOutput" if self._is_cache else "ArchiveClassesAtExit", path)

    @contextlib.contextmanager
    def being_written(self) -> Iterator[Path]:
        """A place for it; what is there at the end takes the archive's own."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=self.path.parent) as folder:
            written = Path(folder) / self.path.name
            yield written
            # Two that write at once write the same: the last one stays.
            if written.exists():
                written.replace(self.path)

    @property
    def _is_cache(self) -> bool:
        return self.java_version >= _CACHE_VERSION

    def _told(self, option: str, path: Path) -> tuple[str, ...]:
        # Which classes were left out, or that it does not fit, is no news to anybody.
        silent = ("-Xlog:cds*=off", "-Xlog:aot*=off") if self._is_cache else ("-Xlog:cds*=off",)
        return (f"-XX:{option}={path}", *silent)


def archive_of(java: Java) -> ClassArchive:
    """Where the classes of this Spark on that Java would be."""
    told = hashlib.sha256(f"{java.home.resolve()} {java.version} {_JARS}".encode())
    for jar in sorted(_JARS.glob("*.jar")):
        stat = jar.stat()
        told.update(f"{jar.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    name = f"spark-{pyspark.__version__}-java-{java.version}-{told.hexdigest()[:12]}.jsa"
    return ClassArchive(_FOLDER / name, java.version)
