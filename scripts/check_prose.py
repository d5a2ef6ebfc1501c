"""Refuse prose that leaves its subject to be guessed: run by `make check`.

Counts the words of RIDDLES in the docstrings and comments of `src/` and in the documentation. More
than LIMIT of them in 1,000 words are an error; the output then names the places, worst files first.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LIMIT = 1.0
PLACES_SHOWN = 40
PAGES = ("*.md", "docs/**/*.md")
RIDDLES = re.compile(
    r"\b(whoever|whatever|whichever|nobody|anew|what is|who has|who is|those that|one that"
    r"|is told|are told|that it has|lets? go|stands?|goes on)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z']+")
HAS_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def prose_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a comment or a docstring."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            yield from enumerate(lines[first - 1 : last], first)


def main() -> int:
    words = 0
    places: dict[Path, list[str]] = defaultdict(list)
    code = ((path, prose_of_code(path.read_text())) for path in Path("src").rglob("*.py"))
    pages = {path for where in PAGES for path in Path().glob(where)}
    texts = ((path, enumerate(path.read_text().splitlines(), 1)) for path in sorted(pages))
    for path, lines in [*code, *texts]:
        for number, line in lines:
            words += len(WORD.findall(line))
            if riddles := RIDDLES.findall(line):
                places[path] += [f"{path}:{number}: {', '.join(riddles)}"] * len(riddles)
    rate = 1000 * sum(map(len, places.values())) / words
    if rate <= LIMIT:
        return 0
    worst = sorted(places.values(), key=len, reverse=True)
    shown = list(dict.fromkeys(line for lines in worst for line in lines))[:PLACES_SHOWN]
    print(
        f"{rate:.2f} words of RIDDLES in 1,000, at most {LIMIT}: name the subject", *shown, sep="\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
