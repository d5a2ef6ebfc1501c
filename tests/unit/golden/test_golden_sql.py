"""SQL: the hash of each migration, and the tables and functions that all of them leave behind.

The hash is that of the statements: comments may be rewritten, and lines broken elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from golden_files import Golden

from tidegate.storage.postgres.store import migration_files

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_BODY = re.compile(r"(\$\w*\$).*?\1", re.DOTALL)
_MADE = re.compile(
    r"create (?:or replace )?(?:unlogged )?(?:unique )?"
    r"(table|function|procedure|type|index|sequence|view|trigger)\s+(?:if not exists )?(\w+)\s*"
)
_DROPPED = re.compile(
    r"drop (table|function|procedure|type|index|sequence|view|trigger)\s+(?:if exists )?(\w+)"
)
_CHANGED = re.compile(r"alter (table|type|function)\s+(?:if exists )?(\w+)\s+")


def test_migrations_are_as_they_were(golden: Golden) -> None:
    golden("sql/migrations.txt", _hashes())


def test_schema_of_the_migrations_is_unchanged(golden: Golden) -> None:
    golden("sql/schema.txt", _schema())


def _hashes() -> Iterator[str]:
    for number, name, text in migration_files():
        statements = " ".join(_COMMENT.sub("", text).split())
        yield f"{number:04d} {name} sha256 {hashlib.sha256(statements.encode()).hexdigest()}"


def _schema() -> list[str]:
    """Each thing that is there in the end, with the statements about it in their order."""
    there: dict[tuple[str, str], list[str]] = {}
    for number, _, text in migration_files():
        for statement in _statements(text):
            if made := _MADE.match(statement):
                kind, name = made[1], made[2]
                there.setdefault((kind, name), []).append(f"{number:04d} {statement}")
            elif dropped := _DROPPED.match(statement):
                there.pop((dropped[1], dropped[2]), None)
            elif changed := _CHANGED.match(statement):
                about = (changed[1], changed[2])
                there.setdefault(about, []).append(f"{number:04d} {statement}")
            else:
                there.setdefault(("other", ""), []).append(f"{number:04d} {statement}")
    return [line for _, lines in sorted(there.items()) for line in lines]


def _statements(text: str) -> Iterator[str]:
    """Statements in one line each, functions without their bodies."""
    plain = _BODY.sub("$$", _COMMENT.sub("", text))
    for one in plain.split(";"):
        if statement := " ".join(one.split()):
            yield statement
