"""Code that only whoever deploys it has: it goes through the store to the machines, or is refused.

One service for all of these, in the order in which they stand; where it is started there is no
code at all.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hosted import AGREEMENT, SHOP, Answer, Hosted, ask
from waiting import eventually

from tidegate.storage.embedded import running_url

ABOUT = "hosted_shop-1.dist-info"


def code(version: str) -> str:
    return SHOP.replace('VERSION = "one"', f'VERSION = "{version}"')


def wheel(folder: Path, version: str) -> Path:
    """As a build would have made it."""
    folder.mkdir()
    path = folder / "hosted_shop-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hosted_shop.py", code(version))
        file.writestr(f"{ABOUT}/METADATA", "Metadata-Version: 2.1\nName: hosted-shop\nVersion: 1\n")
        file.writestr(f"{ABOUT}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{ABOUT}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    built = wheel(tmp_path_factory.mktemp("built") / "wheel", "wheel")
    # One instance shows it as well as two, and is started in half the time.
    running = Hosted(
        ship=built, agreement=AGREEMENT.replace("min = 2, max = 3", "min = 1, max = 1")
    )
    yield running
    assert running.end() == 0
    eventually(lambda: not running.left_behind(), "everything ends with it")


def runs_in(answer: Answer) -> Path:
    """The folder of the process that has answered."""
    return Path(f"/proc/{answer.body.split()[1]}/cwd").readlink()


def test_a_wheel_is_sent_to_the_machine_and_answers_there(hosted: Hosted) -> None:
    answer = ask(hosted.address)

    assert answer.body.startswith("wheel ")
    assert runs_in(answer).is_relative_to(hosted.data / "packages")
    assert list(hosted.code.glob("*.py")) == []


# A store that damages what it is given.
SPOIL = """
create function spoil() returns trigger language plpgsql as
$$ begin new.content := decode('{}', 'hex'); return new; end $$;
create trigger spoil before insert or update on package for each row execute function spoil();
"""


def test_code_that_was_changed_in_the_store_is_refused_and_mended_by_deploying_it_again(
    hosted: Hosted, tmp_path: Path
) -> None:
    hosted.ship = wheel(tmp_path / "wheel", "another")
    content = hosted.ship.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    tampered = content.replace(b"another", b"badness")
    assert tampered != content
    url = running_url(hosted.data)
    assert url is not None
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SPOIL.format(tampered.hex()).encode())

        refused = hosted.again()

        said = refused.stderr.decode().splitlines()[-1]
        assert refused.returncode == 1, said
        found = hashlib.sha256(tampered).hexdigest()
        assert f"the code {digest[:12]}… is damaged: its SHA-256 is {found[:12]}…" in said
        assert {ask(hosted.address).body.split()[0] for _ in range(20)} == {"wheel"}

        connection.execute("drop trigger spoil on package")
    # It is the same version, which is tried again in its time.
    hosted.again()
    eventually(lambda: ask(hosted.address).body.startswith("another "), "what was put anew serves")


def test_a_folder_is_sent_like_a_wheel(hosted: Hosted, tmp_path: Path) -> None:
    (tmp_path / "hosted_shop.py").write_text(code("folder"))
    hosted.ship = tmp_path

    deployed = hosted.again()

    assert deployed.returncode == 0, deployed.stderr.decode()
    answer = ask(hosted.address)
    assert answer.body.startswith("folder ")
    assert runs_in(answer).is_relative_to(hosted.data / "packages")
