"""The laws with their formulas, for docs/explanation, read from the docstrings of their modules.

A law's module begins with a sentence that says what the law answers, followed by its formula in an
indented block. Reading both from the source keeps the page and the code equal.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from importlib import resources

# In the order of the pages.
SCALING = (
    *("stability", "shares", "exchange", "elasticity", "election", "feed_forward"),
    *("wait_sizing", "length_target", "reversal", "warm_pool"),
)
PREFETCH = ("least_squares", "controllers", "pole_placement", "keep_up")
HTTP = ("http_sizing", "availability_index", "balancing")
LEARNED = ("capacity", "load", "extrapolation", "anomaly")


def scaling() -> str:
    return _told(SCALING)


def prefetch() -> str:
    return _told(PREFETCH)


def http() -> str:
    return _told(HTTP)


def learned() -> str:
    return _told(LEARNED)


def _told(modules: tuple[str, ...]) -> str:
    return "\n\n".join(_one(module) for module in modules)


def _one(module: str) -> str:
    source = (resources.files("tidegate.laws") / f"{module}.py").read_text(encoding="utf-8")
    words = ast.get_docstring(ast.parse(source), clean=True) or ""
    sentence, *paragraphs = words.split("\n\n")
    following = itertools.dropwhile(lambda one: not one.startswith("    "), paragraphs)
    formula = "\n\n".join(itertools.takewhile(lambda one: one.startswith("    "), following))
    if not formula:
        raise ValueError(f"laws/{module}.py does not open with its formula")
    said = " ".join(sentence.split())
    return f"**`{module}`**: {said}\n\n```text\n{textwrap.dedent(formula)}\n```"
