"""Refuse a name that says two things: run by `make check`.

Within `src/tidegate`, and within `src/tidegate_lab`, each of these is an error:
- a public class name that two modules define at their top level;
- a module name that occurs twice, unless PARALLEL says why.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# Package, reason: the module names that may occur more than once.
PARALLEL = {
    ("tidegate", "parallel layers: packets, handlers, the client's calls, tables of each store"): (
        "catalogue cluster messages topology"
    ),
    ("tidegate", "parallel engines: the RabbitMQ client has the parts of the native one"): (
        "client connection consumer message subscription"
    ),
    ("tidegate", "parallel engines and doors"): "actuator sensor",
    ("tidegate", "core names the nouns, a package above works with them"): (
        "machines prefetch services store"
    ),
    ("tidegate", "a law, and the control module that applies it"): "loop sizing",
    ("tidegate", "control has a loop per kind of thing, engines and doors have the thing"): (
        "door rabbitmq"
    ),
    ("tidegate", "a command or a page has the name of the module that it runs or shows"): (
        "agreements app capacity gateway learn models queues watch worker"
    ),
    ("tidegate", "one package measures or writes, another reads"): "lake learned schemas stats",
    ("tidegate", "a real replica, and its model in virtual time"): "replica",
    ("tidegate", "one word of two systems: sessions, models and runtimes of each"): (
        "model runtime session"
    ),
    ("tidegate_lab", "parallel experiments: each paper has these parts"): (
        "clients contest crew run simulated"
    ),
}


def complaints(package: str) -> Iterator[str]:
    """Yield a line for each name of a package that occurs twice."""
    classes, modules = defaultdict(list), defaultdict(list)
    for path in sorted(Path("src", package).rglob("*.py")):
        modules[path.stem].append(str(path))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{path}:{node.lineno}")
    for name, places in classes.items():
        if len(places) > 1:
            yield f"class {name} is defined {len(places)} times: {' '.join(places)}"
    allowed = {
        stem for (of, _), stems in PARALLEL.items() if of == package for stem in stems.split()
    }
    for stem, places in modules.items():
        if len(places) > 1 and stem not in allowed | {"__init__"}:
            yield f"module name {stem} occurs {len(places)} times: {' '.join(places)}"
    for stem in sorted(allowed):
        if len(modules[stem]) < 2:
            yield f"module name {stem} occurs once: remove it from PARALLEL"


if __name__ == "__main__":
    found = [line for package in ("tidegate", "tidegate_lab") for line in complaints(package)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
