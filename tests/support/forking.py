"""A process that has imported the command line and forks for each command.

A command is still a process of its own with its own files, environment and exit code, but it does
not import everything again, which costs ten times more than what most commands do.

    python forking.py      reads one JSON request a line, answers each with an exit code
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback


def serve() -> None:
    import tidegate.client.client
    import tidegate.lab.bench.load  # noqa: F401
    from tidegate.cli.app import app, main

    # A first command draws in whatever is imported only when it is needed.
    with contextlib.redirect_stdout(io.StringIO()):
        app(["lab", "list"], standalone_mode=False)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, object]) -> None:
    """The files, environment and arguments of the command, and nothing of the server's."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(str(request[name]), flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    arguments = request["arguments"]
    assert isinstance(arguments, list)
    sys.argv = ["tidegate", *arguments]


if __name__ == "__main__":
    serve()
