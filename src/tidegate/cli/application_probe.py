"""A program that checks whether `module:app` imports and is an ASGI application.

    python -m tidegate.cli.application_probe shop:app 7              answer to descriptor 7
    python -m tidegate.cli.application_probe shop:app 7 shop.whl     with the wheel on the path

It is a separate process because an import runs user code, which may print, hang or exit. The answer
is a JSON object with a sentence about the problem. The application's traceback goes to stderr.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

from tidegate.core.errors import InvalidValue
from tidegate.core.runtime import print_from_users_file, user_module

DEFAULT_NAME = "app"


def main() -> None:
    target, descriptor = sys.argv[1], int(sys.argv[2])
    # The wheel comes before the folder, and the folder before all other paths.
    sys.path[:0] = [*sys.argv[3:], str(Path.cwd())]
    try:
        wrong = fault_of(target)
    except BaseException as failure:
        # An application may raise any error when its attributes are read.
        print_from_users_file(failure)
        wrong = f"{target!r} cannot be looked at: {failure!r}"
    os.write(descriptor, json.dumps({"wrong": wrong}).encode() + b"\n")
    os.close(descriptor)
    # Exit without waiting for threads that the module may have started.
    sys.stderr.flush()
    os._exit(0)


def fault_of(target: str) -> str:
    """Return why the target cannot be hosted; empty if it can."""
    module_name, _, path = target.partition(":")
    path = path or DEFAULT_NAME
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        return f"{target!r} is no MODULE:APP, such as shop:app or shop.web:app"
    try:
        module = user_module(module_name)
    except InvalidValue as wrong:
        return str(wrong)
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    where = f"{module_name} ({getattr(module, '__file__', None) or 'no file'})"
    if found is None:
        names = [
            name
            for name, value in vars(module).items()
            if not (name.startswith("_") or inspect.ismodule(value)) and not why_no_asgi(value)
        ]
        there = f"; there is {module_name}:{names[0]}" if names else ""
        return f"{where} has no {path!r}{there}"
    why = why_no_asgi(found)
    return why and f"{path!r} in {where} is no ASGI application: {why}"


def why_no_asgi(found: Any) -> str:
    """Return why an object is not an ASGI application; empty if it may be one."""
    if not callable(found):
        return f"it is of type {type(found).__name__}, which cannot be called"
    if inspect.isclass(found) and not hasattr(found, "__await__"):
        return f"it is a class; name an instance, such as app = {found.__name__}()"
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        # A callable written in C may hide its signature. The server will find out.
        return ""
    if _takes(signature, 3):
        return ""
    if _takes(signature, 2) and _is_wsgi(found, signature):
        return "it is a WSGI application; wrap it, as with a2wsgi or asgiref's WsgiToAsgi"
    if _takes(signature, 0):
        return "it takes nothing; if it makes the application, call it: app = make_app()"
    return f"it is called with {signature}, and not with (scope, receive, send)"


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*([None] * count))
    except TypeError:
        return False
    return True


def _is_wsgi(found: Any, signature: inspect.Signature) -> bool:
    return hasattr(found, "wsgi_app") or "start_response" in signature.parameters


if __name__ == "__main__":
    main()
