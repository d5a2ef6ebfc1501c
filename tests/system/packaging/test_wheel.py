"""The wheel that users install, in environments with the packages that it needs and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from command_line import Up, clean_environment, running_up
from packaging.requirements import Requirement
from places import ROOT

import tidegate

# Each environment takes seconds to make: one worker makes them all.
pytestmark = pytest.mark.xdist_group("wheel")

PUT_AND_GET = """
import asyncio, sys, tidegate

with tidegate.connect(sys.argv[1]) as mq:
    mq.create_queue("letters")
    mq.put("letters", b"hello")
    print(mq.get("letters", wait=10).payload.decode())

async def main():
    async with tidegate.connect(sys.argv[1]) as mq:
        await mq.put("letters", b"hello again")
        print((await mq.get("letters", wait=10)).payload.decode())

asyncio.run(main())
"""
WORKER = """
import tidegate

app = tidegate.App()

@app.worker("names")
async def greet(name: bytes) -> None:
    print(f"hello {name.decode()}")
    app.stop()
"""


class Environment:
    """A virtual environment with the wheel, and copies of the packages of its extras."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        purelib = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
        for name in required_by(wheel, extras):
            copy_package(name, Path(purelib))
        # Without an index pip refuses a wheel that asks for more than is there.
        asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
        install = ("install", "--quiet", "--no-index", "--disable-pip-version-check", asked)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *install]
        subprocess.run(pip, check=True, env=clean_environment())

    def run(
        self, program: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = clean_environment() | environment
        variables.pop("PYTHONPATH", None)
        return subprocess.run(
            [str(self.bin / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.bin.parent,
            env=variables,
            timeout=60,
        )


def required_by(wheel: Path, extras: tuple[str, ...]) -> set[str]:
    """The distributions that the wheel asks for, with all that those ask for."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    asked = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    waiting = [(Requirement(one), ("", *extras)) for one in asked]
    found: set[str] = set()
    while waiting:
        requirement, wanted = waiting.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in wanted):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            below = distribution(requirement.name).requires or []
            waiting += [(Requirement(one), ("", *requirement.extras)) for one in below]
    return found


def copy_package(name: str, purelib: Path) -> None:
    for file in distribution(name).files or ():
        # Not the programs, which are beside site-packages.
        if ".." not in file.parts:
            (purelib / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.fspath(file.locate()), purelib / file)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("client"), wheel)


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("commands"), wheel, "cli")


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """A node of the environment that the tests run in."""
    with running_up() as running:
        yield running


def test_the_wheel_holds_tidegate_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist()}
    assert folders == {"tidegate", f"tidegate-{tidegate.__version__}.dist-info"}


def test_the_wheel_holds_every_template(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.endswith(".j2")}
    templates = (ROOT / "src/tidegate").rglob("*.j2")
    assert held == {file.relative_to(ROOT / "src").as_posix() for file in templates} != set()


def test_without_extras_it_needs_two_packages_and_what_those_need(wheel: Path) -> None:
    below = {Requirement(one).name for one in distribution("scramp").requires or ()}
    assert required_by(wheel, ()) == {"msgspec", "scramp"} | below


def test_the_client_alone_puts_and_gets(client: Environment, up: Up) -> None:
    done = client.run("python", "-c", PUT_AND_GET, up.url)
    assert (done.stdout, done.stderr) == ("hello\nhello again\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["put", "letters", "hello"]])
def test_without_the_commands_it_says_what_to_install(
    client: Environment, arguments: list[str]
) -> None:
    done = client.run("tidegate", *arguments)
    assert done.returncode == 1
    sentence = "tidegate: this needs the package typer: pip install 'tidegate[cli]'\n"
    assert (done.stdout, done.stderr) == ("", sentence)


def test_the_extra_cli_runs_commands_of_clients(commands: Environment, up: Up) -> None:
    def run(*arguments: str) -> str:
        done = commands.run("tidegate", *arguments, TIDEGATE_URL=up.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("create", "notes")
    assert run("put", "notes", "hello") == "1\n"
    assert "notes" in run("queues")
    assert "notes" in run("status")
    assert run("get", "notes", "--wait", "10s") == "hello\n"


def test_the_extra_cli_runs_a_worker(commands: Environment, up: Up) -> None:
    (commands.bin.parent / "greeting.py").write_text(WORKER)
    with tidegate.connect(up.url) as mq:
        mq.create_queue("names")
        mq.put("names", b"ann")
    worker = commands.run("tidegate", "worker", "greeting:app", TIDEGATE_URL=up.url)
    assert worker.returncode == 0, worker.stderr
    assert worker.stdout == "hello ann\n"


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["up"], "psycopg", "node"),
        (["demo"], "psycopg", "node"),
        (["learn"], "numpy", "spark"),
    ],
)
def test_a_node_needs_more_and_says_what(
    commands: Environment, arguments: list[str], package: str, extra: str
) -> None:
    done = commands.run("tidegate", *arguments)
    assert done.returncode == 1
    sentence = f"tidegate: this needs the package {package}: pip install 'tidegate[{extra}]'\n"
    assert (done.stdout, done.stderr) == ("", sentence)


def test_the_commands_of_the_lab_are_not_there(commands: Environment) -> None:
    done = commands.run("tidegate", "bench")
    assert done.returncode == 2
    assert "No such command 'bench'" in done.stderr
