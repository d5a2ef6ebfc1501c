"""Code on its way to machines: packed the same each time, unpacked safely or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import shutil
import stat
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S

from tidegate.core.errors import InvalidValue, TidegateError, TooLarge
from tidegate.fleet import packages
from tidegate.fleet.packages import PackageCache, pack_code, unpack
from tidegate.storage.memory import MemoryStore
from tidegate.storage.postgres_server import DataFolder


def digest_of(content: bytes | bytearray) -> str:
    return hashlib.sha256(content).hexdigest()


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def archive_of(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, content in entries:
            file.writestr(name, content)
    return made.getvalue()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "web" / "__pycache__").mkdir(parents=True)
    (folder / "web" / "__init__.py").write_text("app = 1")
    (folder / "web" / "__pycache__" / "old.pyc").write_text("made by Python")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("hidden")
    (folder / "venv").mkdir()
    (folder / "venv" / "pyvenv.cfg").write_text("an environment")
    (folder / "conda" / "conda-meta").mkdir(parents=True)
    (folder / "conda" / "python").write_text("an environment, too")
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "data.txt").symlink_to("run.sh")
    return folder


def test_a_folder_arrives_as_it_was_without_what_is_nobodys_code(
    shop: Path, tmp_path: Path
) -> None:
    content = pack_code(shop)
    os.utime(shop / "run.sh", (1, 1))
    assert pack_code(shop) == content, "the same code is the same archive"
    unpack(content, digest_of(content), tmp_path / "there")
    assert files_of(tmp_path / "there") == {
        "web/__init__.py": "app = 1",
        "run.sh": "#!/bin/sh",
        "data.txt": "#!/bin/sh",
    }
    assert (tmp_path / "there" / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "there" / "data.txt").is_symlink()


def test_data_that_lies_beside_the_code_is_not_shipped_with_it(shop: Path) -> None:
    before = pack_code(shop)
    held = DataFolder(shop / "tidegate-data")
    held.hold()
    (held.path / "password").write_text("hush")
    # Of a machine that holds no database.
    PackageCache(shop / "kept", 7, MemoryStore())._take()
    assert pack_code(shop) == before

    with pytest.raises(InvalidValue, match="is a data folder of Tidegate"):
        pack_code(held.path)
    held.release()


def test_a_wheel_goes_as_it_is(tmp_path: Path) -> None:
    wheel = tmp_path / "shop-1-py3-none-any.whl"
    wheel.write_bytes(archive_of(("shop/__init__.py", b"app = 1")))
    assert pack_code(wheel) == wheel.read_bytes()
    wheel.write_bytes(b"PK and no more")
    with pytest.raises(InvalidValue, match="no archive of code"):
        pack_code(wheel)


def test_pack_code_refuses_missing_empty_and_linked_files(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidValue, match="neither a folder nor a wheel"):
        pack_code(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValue, match="holds no files"):
        pack_code(tmp_path / "empty")
    (shop / "secrets").symlink_to("/etc/hostname")
    with pytest.raises(InvalidValue, match="is a link to /etc/hostname, which is not shipped"):
        pack_code(shop)
    (shop / "secrets").unlink()
    monkeypatch.setattr(packages, "UNPACKED_BYTES_MAX", 10)
    with pytest.raises(TooLarge, match="leave data"):
        pack_code(shop)


def test_a_link_that_leads_back_to_itself_is_refused_in_words(shop: Path) -> None:
    (shop / "one").symlink_to("other")
    (shop / "other").symlink_to("one")
    with pytest.raises(InvalidValue, match=r"shop/one cannot be shipped: .* back to itself"):
        pack_code(shop)


@pytest.mark.parametrize("where", ["caf\udce9.py", "caf\udce9/menu.py", "web/\udcff\x1b[2J.txt"])
def test_a_name_that_is_no_text_is_refused_in_words(shop: Path, where: str) -> None:
    (shop / where).parent.mkdir(exist_ok=True)
    (shop / where).write_text("")
    with pytest.raises(InvalidValue, match="cannot be shipped: its name is not UTF-8") as refusal:
        pack_code(shop)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", ["C:menu.py", "web\\menu.py"])
def test_a_name_that_machines_refuse_is_refused_before_it_is_shipped(shop: Path, name: str) -> None:
    (shop / name).write_text("")
    with pytest.raises(InvalidValue, match=r"menu\.py' is not unpacked"):
        pack_code(shop)


def test_a_file_that_no_memory_holds_is_refused_unread(shop: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "shop-1-py3-none-any.whl"
    for file, shipped in ((shop / "recording.bin", shop), (wheel, wheel)):
        with file.open("wb") as sparse:
            sparse.truncate(1 << 42)
        with pytest.raises(TooLarge, match=rf"{file.name} has more than \d+ bytes"):
            pack_code(shipped)


@contextlib.contextmanager
def as_nobody() -> Iterator[Path]:
    """A folder of our own while we may not read everything, as root may."""
    was_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        if was_root:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if was_root:
                os.seteuid(0)


def test_pack_code_names_files_without_permission() -> None:
    with as_nobody() as folder:
        (folder / "a.py").write_text("app = 1")
        (folder / "wheel.whl").write_bytes(archive_of(("a.py", b"app = 1")))
        (folder / "secret").mkdir()

        (folder / "wheel.whl").chmod(0)
        with pytest.raises(InvalidValue, match=r"wheel.whl cannot be shipped: Permission denied"):
            pack_code(folder / "wheel.whl")
        with pytest.raises(InvalidValue, match=r"wheel.whl cannot be shipped: Permission denied"):
            pack_code(folder)
        (folder / "wheel.whl").unlink()
        (folder / "secret").chmod(0)
        for path in (folder, folder / "secret", folder / "secret" / "shop"):
            with pytest.raises(InvalidValue, match=r"/secret.*be shipped: Permission denied"):
                pack_code(path)
        (folder / "secret").chmod(0o700)


def _link(name: str, target: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    about = zipfile.ZipInfo(name)
    about.external_attr = (stat.S_IFLNK | 0o777) << 16
    return about, target


# Each has a name of its own: an archive holds the time at which it was made, and the workers of
# pytest-xdist must collect tests of equal names.
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(archive_of(("../outside.py", b"x")), id="above"),
        pytest.param(archive_of(("a/../../outside.py", b"x")), id="above from below"),
        pytest.param(archive_of(("/tmp/outside.py", b"x")), id="absolute"),
        pytest.param(archive_of(("C:/outside.py", b"x")), id="drive"),
        pytest.param(archive_of(("..\\outside.py", b"x")), id="backslash"),
        pytest.param(archive_of(_link("inside", b"/etc"), ("inside/passwd", b"x")), id="link"),
        pytest.param(archive_of(("a", b"1"), ("a/b", b"2")), id="file as folder"),
        pytest.param(b"", id="empty"),
        pytest.param(b"no archive", id="no archive"),
    ],
)
def test_unpack_refuses_paths_outside_its_folder(content: bytes, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "code"
    with pytest.raises((InvalidValue, OSError)):
        unpack(content, digest_of(content), target)
    assert not target.exists()
    assert files_of(tmp_path) == {}, "nothing is left of it anywhere"


def test_a_file_that_is_larger_than_it_says_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive_of(("a.py", b"x" * 100))
    # The size stands in the archive twice, little end first.
    lying = content.replace((100).to_bytes(4, "little"), (3).to_bytes(4, "little"))
    with pytest.raises(InvalidValue):
        unpack(lying, digest_of(lying), tmp_path / "code")
    monkeypatch.setattr(packages, "UNPACKED_BYTES_MAX", 50)
    with pytest.raises(TooLarge):
        unpack(content, digest_of(content), tmp_path / "code")
    assert not (tmp_path / "code").exists()


@given(st.data())
def test_a_damaged_package_is_refused_in_words(data: st.DataObject) -> None:
    content = archive_of(("a.py", b"print(1)" * 9))
    place = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[place] ^= data.draw(st.integers(1, 255))
    nowhere = Path("/nonexistent/code")
    with pytest.raises(InvalidValue, match=r"is damaged: its SHA-256 is .*; deploy it again"):
        unpack(bytes(damaged), digest_of(content), nowhere)


@given(st.data())
def test_an_archive_that_somebody_has_thought_up_is_unpacked_or_refused_in_words(
    data: st.DataObject,
) -> None:
    content = bytearray(archive_of(("a/b.py", b"print(1)" * 9), ("c.py", b"2")))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TidegateError):
        unpack(bytes(content), digest_of(content), Path(folder) / "code")


async def test_a_machine_fetches_code_once_and_clears_up_after_the_dead(
    shop: Path, tmp_path: Path
) -> None:
    store = MemoryStore()
    digest = await store.put_package(pack_code(shop))
    other = await store.put_package(archive_of(("b.py", b"2")))
    (tmp_path / "packages" / "machine-3" / "left").mkdir(parents=True)
    cache, neighbour = (PackageCache(tmp_path, number, store) for number in (7, 8))

    one, same = await asyncio.gather(cache.folder_of(digest), cache.folder_of(digest))
    assert one == same
    assert "web/__init__.py" in files_of(one)
    there = await neighbour.folder_of(other)
    assert not (tmp_path / "packages" / "machine-3").exists(), "nobody lives there"
    assert one.exists(), "somebody lives there"

    await cache.folder_of(other)
    cache.forget_all_but({other})
    assert not one.exists()
    with pytest.raises(TidegateError, match="another machine uses"):
        await PackageCache(tmp_path, 7, store).folder_of(digest)
    cache.close()
    assert there.exists()
    neighbour.close()
    assert [path.name for path in (tmp_path / "packages").iterdir()] == ["lock"]


async def test_package_cache_ignores_files_of_a_killed_machine(shop: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    digest = await store.put_package(pack_code(shop))
    left = tmp_path / "packages" / "machine-7" / digest
    left.mkdir(parents=True)
    (left / "run.sh").write_text("what its application wrote there")
    successor, neighbour = (PackageCache(tmp_path, number, store) for number in (7, 8))

    folder = await successor.folder_of(digest)
    assert files_of(folder)["run.sh"] == "#!/bin/sh"
    await neighbour.folder_of(digest)
    assert folder.exists()


async def test_machines_that_come_back_together_do_not_clear_each_other_up(
    shop: Path, tmp_path: Path
) -> None:
    store = MemoryStore()
    digest = await store.put_package(pack_code(shop))
    for number in range(8):
        for left in range(50):
            (tmp_path / "packages" / f"machine-{number}" / f"{left}").mkdir(parents=True)
    caches = [PackageCache(tmp_path, number, store) for number in range(8)]

    folders = await asyncio.gather(*(cache.folder_of(digest) for cache in caches))
    assert all("run.sh" in files_of(folder) for folder in folders)
    for cache in caches:
        cache.close()


async def test_code_that_cannot_be_removed_whole_is_fetched_whole_again(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    digest = await store.put_package(pack_code(shop))
    cache = PackageCache(tmp_path, 7, store)
    folder = await cache.folder_of(digest)

    def half(path: Path, **_: object) -> None:
        next(path.rglob("run.sh")).unlink()

    monkeypatch.setattr(shutil, "rmtree", half)
    cache.forget_all_but(())
    monkeypatch.undo()
    assert await cache.folder_of(digest) == folder
    assert "run.sh" in files_of(folder)
    cache.close()


async def test_an_instance_that_is_let_go_while_its_code_is_unpacked_is_in_nobodys_way(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    digest = await store.put_package(pack_code(shop))
    cache = PackageCache(tmp_path, 7, store)
    first, second, done = threading.Event(), threading.Event(), threading.Event()
    rename = Path.rename

    def one_after_the_other(path: Path, target: Path) -> Path:
        if path.name != "code":
            return rename(path, target)
        if not first.is_set():
            first.set()
            second.wait(LIMIT_S)
            renamed = rename(path, target)
            done.set()
            return renamed
        second.set()
        done.wait(LIMIT_S)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", one_after_the_other)
    let_go = asyncio.create_task(cache.folder_of(digest))
    assert await asyncio.to_thread(first.wait, LIMIT_S)
    let_go.cancel()
    assert "run.sh" in files_of(await cache.folder_of(digest))
    cache.close()
