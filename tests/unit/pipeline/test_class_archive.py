"""The file of Spark's classes: for whom it is, and when it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.pipeline import session
from tidegate.pipeline.session import Java, archive_of


def java(home: Path, version: int) -> Java:
    return Java(home, version, "test", has_vector_module=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of an environment with one jar."""
    jars, kept = tmp_path / "jars", tmp_path / "kept"
    jars.mkdir()
    (jars / "spark.jar").write_bytes(b"classes")
    monkeypatch.setattr(session, "_JARS", jars)
    monkeypatch.setattr(session, "_FOLDER", kept)
    return tmp_path


def test_another_java_or_another_jar_needs_another_archive(folder: Path) -> None:
    first = archive_of(java(folder / "a", 17)).path
    assert archive_of(java(folder / "a", 17)).path == first
    others = {archive_of(java(folder / "b", 17)).path, archive_of(java(folder / "a", 21)).path}
    (folder / "jars" / "spark.jar").write_bytes(b"other classes")
    others.add(archive_of(java(folder / "a", 17)).path)

    assert len(others | {first}) == 4
    assert {path.parent for path in others} == {folder / "kept"}


@pytest.mark.parametrize(
    ("version", "writes", "reads"),
    [(17, "ArchiveClassesAtExit", "SharedArchiveFile"), (25, "AOTCacheOutput", "AOTCache")],
)
def test_java_is_told_of_an_archive_that_is_there(
    folder: Path, version: int, writes: str, reads: str
) -> None:
    archive = archive_of(java(folder, version))
    assert archive.options == ()

    with archive.being_written() as path:
        assert archive.options_to_write(path)[0] == f"-XX:{writes}={path}"
        path.write_bytes(b"all of them")
        assert archive.options == (), "half a file is none"

    assert archive.options[0] == f"-XX:{reads}={archive.path}"
    assert archive.path.read_bytes() == b"all of them"
    assert list(archive.path.parent.iterdir()) == [archive.path]


def test_failed_class_archive_leaves_no_file(folder: Path) -> None:
    archive = archive_of(java(folder, 17))

    def fail() -> None:
        with archive.being_written() as path:
            path.write_bytes(b"some of them")
            raise RuntimeError("Spark did not end well")

    with archive.being_written():
        pass
    with pytest.raises(RuntimeError):
        fail()

    assert list(archive.path.parent.iterdir()) == []
