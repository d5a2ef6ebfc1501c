"""Every rule of every law is told to people in words, and none in shorthand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from tidegate.core.decisions import format_rule

ROOMS = ("laws", "control")
# Names of figures, formulas, and numbers of rules of the papers.
SHORTHAND = re.compile(r"[≈≤≥<>Σ−/=]|\bR\d|L_c|C_i|avg_load|NPP")


def rules() -> list[str]:
    """All that the code of the laws and loops can call a rule."""
    found: set[str] = set()
    for room in ROOMS:
        for file in (Path(tidegate.__file__).parent / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                found.update(_said_by(node))
    return sorted(found)


def _said_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.keyword(arg="rule", value=value):
            yield from _texts(value)
        case ast.Call(func=ast.Name(id="Proposal"), args=[_, rule, *_]):
            yield from _texts(rule)
        case ast.Assign(targets=[ast.Attribute(attr="rule") | ast.Name(id="rule")], value=value):
            yield from _texts(value)
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and name.id in ("rule", "held"):
                    yield from _texts(value)
        case ast.FunctionDef(name="rule", body=body):
            for statement in body:
                for inner in ast.walk(statement):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield from _texts(inner.value)
        case ast.Constant(value=str(text)) if text.startswith("held: ") and len(text) > 6:
            yield text


def _texts(value: ast.expr) -> Iterator[str]:
    """Whole texts, and not the parts of one that is put together."""
    match value:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.BoolOp(values=values):
            for one in values:
                yield from _texts(one)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _texts(body)
            yield from _texts(orelse)


def test_the_rules_of_all_loops_are_found() -> None:
    found = rules()

    assert {"needed ≈ replicas", "R5: L_c > 1", "held: stale", "hanging", "no free slot"} <= set(
        found
    )
    assert len(found) > 40


@pytest.mark.parametrize("rule", rules())
def test_a_rule_is_told_in_plain_words(rule: str) -> None:
    for whole in (rule, f"{rule}, at max", f"capacity unknown: {rule}"):
        told = format_rule(whole)

        assert not SHORTHAND.search(told), told
        assert len(told.split()) >= 3, f"{told}: say it as a clause"


def test_format_rule_explains_combined_rules() -> None:
    assert format_rule("capacity unknown: avg_load > max_load, at max") == (
        "what a replica can do is not known yet: more messages wait for each replica than max_load "
        "allows, but no more are allowed"
    )
    assert format_rule("held: cool-down") == (
        "nothing is changed: replicas have come or gone a moment ago"
    )
    assert format_rule("wait_p99 is breached") == "wait_p99 is breached"
