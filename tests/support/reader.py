"""A page read as its reader does it: file by file and command by command, in an empty folder.

A block of `sh` is run. One of any other language that begins with `# name.ext` is written to that
file; `python` without a name is run. `text`, `json` and the like are there to be looked at.
Comments, which no reader sees, say what a reader does by themselves:

    <!-- stays: TEXT -->       it goes on in a terminal of its own; waited for until it says TEXT
    <!-- shows: TEXT -->       it has to print this
    <!-- until: TEXT -->       look again until it prints this
    <!-- Ctrl-C: COMMAND -->   end what stays
    <!-- not run: REASON -->   the next block cannot be run here
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from free_ports import free_ports
from waiting import eventually

PART = re.compile(
    r"<!-- (?P<word>stays|shows|until|Ctrl-C|not run): *(?P<said>.*?) *-->"
    r"|^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
# What is shown: printed by something, or for programs that are not ours.
SHOWN = {"text", "json", "yaml", "ini", "nginx"}
FILE_NAME = re.compile(r"# (/?[\w-]+(?:/[\w-]+)*\.\w+)(?: |\n)")
# Of two cores that others use as well; on idle ones no block takes a tenth of it.
BLOCK_S_MAX = 240.0
READY_S_MAX = 240.0
END_S_MAX = 120.0
# Of whoever runs the tests; without bytecode each command takes seconds to start.
NOT_A_READERS = ("COLUMNS", "FORCE_COLOR", "PYTHONDONTWRITEBYTECODE")
# Ports that pages name; here others may have them.
NODE_PORT, METRICS_PORT, CONSOLE_PORT = "7411", "8411", "8911"


@dataclass
class Block:
    """One fenced block, and what was said about it."""

    language: str
    text: str
    line: int
    words: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Interrupt:
    """Ctrl-C in the terminal of a command."""

    command: str


def parts_of(page: Path) -> list[Block | Interrupt]:
    """Everything that there is to do, in order."""
    text = page.read_text()
    found: list[Block | Interrupt] = []
    words: dict[str, list[str]] = {}
    for part in PART.finditer(text):
        if part["word"] == "Ctrl-C":
            found.append(Interrupt(part["said"]))
        elif part["word"]:
            words.setdefault(part["word"], []).append(part["said"])
        else:
            line = text.count("\n", 0, part.start()) + 1
            found.append(Block(part["language"], part["text"], line, words))
            words = {}
    return found


def environment_of_a_reader() -> dict[str, str]:
    """Ours, without what a reader would not have."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("TIDEGATE_") and key not in NOT_A_READERS
    }


class Reader:
    """Somebody with some terminals in one folder.

    `names` are words of pages, and what stands in their place here: a reader has a host of their
    own where it says `mq.example`. `environment` is set in every terminal; None unsets.
    """

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, str] | None = None,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self._folder = folder
        self._where = folder
        self._names = names or {}
        self._ports = {port: str(free_ports()) for port in (NODE_PORT, METRICS_PORT, CONSOLE_PORT)}
        wanted = self._usual_environment() | dict(environment or {})
        self._environment = {key: value for key, value in wanted.items() if value is not None}
        self._staying: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        (folder / ".venv").symlink_to(sys.prefix)

    def _usual_environment(self) -> dict[str, str | None]:
        ours = environment_of_a_reader()
        return ours | {
            "PATH": f"{Path(sys.executable).parent}:{ours['PATH']}",
            "TIDEGATE_NODE__PORT": self._ports[NODE_PORT],
            "TIDEGATE_METRICS__PORT": self._ports[METRICS_PORT],
            "TIDEGATE_CONSOLE__PORT": self._ports[CONSOLE_PORT],
            "TIDEGATE_URL": f"tidegate://127.0.0.1:{self._ports[NODE_PORT]}",
        }

    def read(self, page: Path) -> str:
        """Do all of it; what was said by everything that has ended."""
        return "".join([self.do(part) for part in parts_of(page)])

    def do(self, part: Block | Interrupt) -> str:
        """One part of a page, and what it says; every complaint names its line."""
        if isinstance(part, Interrupt):
            return self._interrupt(self._as_here(part.command))
        if "not run" in part.words or part.language in SHOWN:
            return ""
        begun = time.monotonic()
        try:
            said = self._do(part)
        except AssertionError as wrong:
            raise AssertionError(f"line {part.line}: {wrong}") from None
        # Shown when something has failed.
        print(f"line {part.line}: {time.monotonic() - begun:.1f} s")
        return said

    def end(self) -> None:
        """Ctrl-C in every terminal that is left, the newest first."""
        for command in [*reversed(self._staying)]:
            self._interrupt(command)

    def _do(self, block: Block) -> str:
        text = self._as_here(block.text)
        if block.language != "sh" and (name := FILE_NAME.match(text)):
            path = self._where / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return ""
        if block.language == "python":
            script = self._where / f"line-{block.line}.py"
            script.write_text(text)
            text = f"python {shlex.quote(str(script))}\n"
        else:
            assert block.language == "sh", f"nobody knows how to run {block.language!r}"
        if "stays" in block.words:
            self.stay(text, block.words["stays"][0])
            return ""
        wanted = block.words.get("until", [])
        code, said = 0, ""

        def is_said() -> bool:
            nonlocal code, said
            code, said = self._run(text)
            return not wanted or (code == 0 and all(one in said for one in wanted))

        try:
            eventually(is_said, f"says {wanted}", BLOCK_S_MAX)
        except AssertionError as late:
            raise AssertionError(f"{late}, in the end:\n{said}") from None
        assert code == 0, f"exit code {code}:\n{said}"
        for one in block.words.get("shows", []):
            assert one in said, f"does not say {one!r}:\n{said}"
        return said

    def _run(self, commands: str) -> tuple[int, str]:
        """Exit code, and what a block says; its folder and exports are the next one's, too."""
        left = self._folder / ".left"
        try:
            finished = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", f"{commands}\nexport PWD; env -0 > {left}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._where,
                env=self._environment,
                timeout=BLOCK_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"not within {BLOCK_S_MAX:g} s: {late.output}") from None
        if finished.returncode == 0:
            said = left.read_bytes().decode(errors="surrogateescape").split("\0")
            found = dict(one.split("=", 1) for one in said if one)
            self._where = Path(found["PWD"])
            self._environment |= found
        return finished.returncode, finished.stdout.decode(errors="replace")

    def stay(self, commands: str, ready: str) -> None:
        """Have it go on in a terminal of its own, and wait until it says that."""
        said = self._folder / f".said-{len(self._staying)}-{time.monotonic_ns()}"
        with said.open("wb") as file:
            process = subprocess.Popen(
                # It is the command itself that gets what is sent to its terminal.
                ["bash", "-c", f"exec {commands}"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._where,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_end_with_us,
            )
        self._staying[_first_line(commands)] = process, said

        def told() -> str:
            return said.read_text(errors="replace")

        try:
            eventually(
                lambda: ready in told() or process.poll() is not None,
                f"says {ready!r}",
                READY_S_MAX,
            )
        except AssertionError as late:
            raise AssertionError(f"{late}:\n{told()}") from None
        assert ready in told(), f"ended before it was there:\n{told()}"

    def kill(self, command: str) -> None:
        """The power of its computer has failed."""
        process, _ = self._staying.pop(command)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _interrupt(self, command: str) -> str:
        """What it has said until then."""
        process, said = self._staying.pop(command)
        if process.poll() is None:
            # A terminal tells the whole group of processes.
            os.killpg(process.pid, signal.SIGINT)
        try:
            code = process.wait(timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"{command} does not end by Ctrl-C") from None
        told = said.read_text(errors="replace")
        assert code in (0, 130, -signal.SIGINT), f"{command} ended with {code}:\n{told[-3000:]}"
        return told

    def _as_here(self, text: str) -> str:
        for name, here in self._names.items():
            text = text.replace(name, here)
        for port, ours in self._ports.items():
            text = re.sub(rf"\b{port}\b", ours, text)
        return text


def _first_line(commands: str) -> str:
    """A command as it is called on the page, without what is said about it."""
    return commands.strip().splitlines()[0].partition("  #")[0].strip()


def _end_with_us() -> None:
    """A killed pytest ends nothing: the kernel does."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that know of the folder."""
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command, environment = ((entry / one).read_bytes() for one in ("cmdline", "environ"))
        except OSError:
            continue
        if mark in command or mark in environment:
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found
