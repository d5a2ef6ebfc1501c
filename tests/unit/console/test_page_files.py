"""The page's own files: what a content security policy and a reader's trust rest on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

import pytest

from tidegate.report import charts

PAGE = resources.files("tidegate.console") / "page"


def files_below(folder: Traversable) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from files_below(entry)
        else:
            yield entry


SOURCES = sorted(files_below(PAGE), key=str)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_page_names_no_other_host(source: Traversable) -> None:
    # The name of a format is no address.
    text = source.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text) == []


@pytest.mark.parametrize(
    "source", [source for source in SOURCES if source.name.endswith(".js")], ids=lambda s: s.name
)
def test_page_inserts_server_texts_as_text_only(source: Traversable) -> None:
    text = source.read_text()
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"
    assert re.findall(ways, text) == []


def test_page_has_no_inline_script_or_style() -> None:
    text = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=", text) == []


def test_every_file_that_is_named_is_there_and_none_is_left_over() -> None:
    there = {str(source).split("/page/", 1)[1] for source in SOURCES}
    named = {"index.html"}
    for source in SOURCES:
        text = source.read_text()
        named |= set(re.findall(r'"/page/([\w./]+)"', text))
        own = str(source).split("/page/", 1)[1]
        folder = own.rpartition("/")[0]
        for path in re.findall(r'from "(\.[\w./]+)"', text):
            steps = [*folder.split("/")] if folder else []
            for step in path.split("/"):
                if step == "..":
                    steps.pop()
                elif step != ".":
                    steps.append(step)
            named.add("/".join(steps))
    assert named == there


def test_its_colours_are_those_of_the_report() -> None:
    text = (PAGE / "style" / "palette.css").read_text()
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", text)
    assert found == [(colour.name, colour.light, colour.dark) for colour in charts.ALL]
