"""How the pages of docs/ become pages of the site: hooks of mkdocs.

Pages are written for people who read them in the repository, so three things are made good here:

    a link that leaves docs/          the file comes along, under its own name
    a list right below a paragraph    is a list: Python-Markdown wants a blank line before it
    a mermaid diagram                 is drawn when the site is built: no script, no server
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from state_diagram import drawn

ROOT = Path(__file__).resolve().parent.parent
# Pages that stand outside docs/ and are part of the site all the same, and what they are there. A
# README would be taken for the first page of whatever section it is in.
OUTSIDE_PAGES = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "examples/README.md": "examples/examples.md",
}
PLACES = {there: here for here, there in OUTSIDE_PAGES.items()}
DOCS = "docs/"
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/."""
    outside = set(OUTSIDE_PAGES)
    pages = [
        (DOCS + one.src_uri, Path(one.abs_src_path or "")) for one in files.documentation_pages()
    ]
    for place, path in [*pages, *((one, ROOT / one) for one in OUTSIDE_PAGES)]:
        text = FENCE.sub("", path.read_text())
        outside |= {
            target
            for _, link, _ in LINK.findall(text)
            if (target := _target(place, link)) and not target.startswith(DOCS)
        }
    for target in sorted(outside):
        # What is not there is left for --strict to complain about.
        if (ROOT / target).is_file():
            files.append(File.generated(config, _on_site(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links, diagrams and lists as the site wants them."""
    place = PLACES.get(page.file.src_uri, DOCS + page.file.src_uri)
    markdown = MERMAID.sub(lambda found: drawn(found[1]), markdown)
    return _outside_fences(markdown, lambda text: _with_lists(_relinked(text, place)))


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """What is between the fences, changed."""
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def _relinked(text: str, place: str) -> str:
    """The same, with links as they are between pages of the site."""
    here = posixpath.dirname(_on_site(place))

    def relinked(link: re.Match[str]) -> str:
        target = _target(place, link[2])
        if target is None or not (ROOT / target).is_file():
            return link[0]
        return f"{link[1]}{posixpath.relpath(_on_site(target), here or '.')}{link[3]}"

    return LINK.sub(relinked, text)


def _target(place: str, link: str) -> str | None:
    """What a link of a page leads to, from the root of the repository; None: to the world."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def _on_site(target: str) -> str:
    return OUTSIDE_PAGES.get(target, target.removeprefix(DOCS))


def _with_lists(text: str) -> str:
    """A blank line before each list that has none."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        is_item = ITEM.match(line) is not None
        if is_item and not in_list and before.strip():
            lines.append("")
        if is_item:
            in_list = True
        elif line.strip() and not line.startswith(" ") and not before.strip():
            in_list = False
        lines.append(line)
    return "\n".join(lines)
