"""A mermaid state diagram as SVG: `a --> b: label` a line, drawn without a browser.

Strategy: states sit on a grid; the best of some thousand exchanges of places is taken, judged by
what makes a drawing hard to read (lines that cross, lines through states, labels on each other).
The same text gives the same drawing. What is not a state diagram stays a block of text.
"""

from __future__ import annotations

import html
import itertools
import random
import re
from typing import NamedTuple

ARROW = re.compile(r"^\s*(\[\*\]|\w+)\s*-->\s*(\[\*\]|\w+)\s*(?::\s*(.*?))?\s*$")
BEGIN, END = "[*] begin", "[*] end"
COLUMNS = 4
CELL_WIDTH, CELL_HEIGHT = 230.0, 130.0
BOX_WIDTH, BOX_HEIGHT = 104.0, 34.0
DOT = 7.0
LINE_HEIGHT = 13.0
LETTER_WIDTH = 6.6
BEND = 90.0
TRIES = 6000

Point = tuple[float, float]
Arrows = dict[tuple[str, str], list[str]]


class Box(NamedTuple):
    """A rectangle by its middle."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        return (
            abs(self.x - other.x) * 2 < self.width + other.width
            and abs(self.y - other.y) * 2 < self.height + other.height
        )

    def holds(self, point: Point) -> bool:
        return self.meets(Box(*point, 0.0, 0.0))


def drawn(text: str) -> str:
    """The diagram as HTML on one line."""
    if not text.lstrip().startswith("stateDiagram"):
        return f"<pre><code>{html.escape(text)}</code></pre>"
    arrows: Arrows = {}
    for line in text.splitlines():
        if found := ARROW.match(line):
            begin, end, label = found.groups()
            pair = (BEGIN if begin == "[*]" else begin, END if end == "[*]" else end)
            arrows.setdefault(pair, []).extend([label] if label else [])
    return _svg(_placed(arrows), arrows)


def _placed(arrows: Arrows) -> dict[str, Point]:
    """Where each state is best seen."""
    states = list(dict.fromkeys(itertools.chain(*arrows)))
    rows = -(-len(states) // COLUMNS) + 1
    cells = [
        (column * CELL_WIDTH, row * CELL_HEIGHT) for row in range(rows) for column in range(COLUMNS)
    ]
    # Not for secrets: for the same drawing each time.
    draw = random.Random(8)
    best = dict(zip(states, cells, strict=False))
    least = _trouble(best, arrows)
    for _ in range(TRIES):
        tried = dict(best)
        state, cell = draw.choice(states), draw.choice(cells)
        holder = next((one for one, place in best.items() if place == cell), None)
        if holder is not None:
            tried[holder] = best[state]
        tried[state] = cell
        if (trouble := _trouble(tried, arrows)) <= least:
            best, least = tried, trouble
    left, top = (min(place[axis] for place in best.values()) for axis in (0, 1))
    return {state: (x - left + BOX_WIDTH, y - top + BOX_HEIGHT) for state, (x, y) in best.items()}


def _trouble(places: dict[str, Point], arrows: Arrows) -> float:
    """How hard it is to read."""
    boxes = {state: _box(state, place) for state, place in places.items()}
    labels = [_label(places, arrows, pair) for pair in arrows]
    total = 0.0
    for pair in arrows:
        (x1, y1), (x2, y2) = (places[state] for state in pair)
        total += (abs(x2 - x1) / CELL_WIDTH + abs(y2 - y1) / CELL_HEIGHT) * 2.0
        total += 1.0 if x2 < x1 else 0.0
        for step in range(1, 12):
            at = (x1 + (x2 - x1) * step / 12, y1 + (y2 - y1) * step / 12)
            total += 6.0 * sum(box.holds(at) for state, box in boxes.items() if state not in pair)
    for one, other in itertools.combinations(arrows, 2):
        if not set(one) & set(other):
            total += 5.0 * _cross(*(places[state] for state in (*one, *other)))
    for one, other in itertools.combinations(labels, 2):
        total += 4.0 * one.meets(other)
    total += 6.0 * sum(label.meets(box) for label in labels for box in boxes.values())
    return total


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    def side(p: Point, q: Point, r: Point) -> bool:
        return (q[0] - p[0]) * (r[1] - p[1]) > (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) != side(a, b, d) and side(c, d, a) != side(c, d, b)


def _box(state: str, place: Point) -> Box:
    if state in (BEGIN, END):
        return Box(*place, 2 * DOT, 2 * DOT)
    return Box(*place, BOX_WIDTH, BOX_HEIGHT)


def _bent(places: dict[str, Point], arrows: Arrows, pair: tuple[str, str]) -> Point:
    """The point that a line bends towards: those that go both ways keep apart."""
    (x1, y1), (x2, y2) = (places[state] for state in pair)
    middle = ((x1 + x2) / 2, (y1 + y2) / 2)
    if (pair[1], pair[0]) not in arrows:
        return middle
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1.0)
    return middle[0] - (y2 - y1) / length * BEND, middle[1] + (x2 - x1) / length * BEND


def _label(places: dict[str, Point], arrows: Arrows, pair: tuple[str, str]) -> Box:
    words = arrows[pair]
    (x1, y1), (x2, y2) = (places[state] for state in pair)
    bx, by = _bent(places, arrows, pair)
    x, y = (x1 + 2 * bx + x2) / 4, (y1 + 2 * by + y2) / 4
    width = max((len(word) for word in words), default=0) * LETTER_WIDTH
    return Box(x, y, width, len(words) * LINE_HEIGHT)


def _edge(box: Box, towards: Point) -> Point:
    """Where a line from the middle of a box leaves it."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    reach = min(
        (box.width / 2 + 2) / abs(dx) if dx else 1.0, (box.height / 2 + 2) / abs(dy) if dy else 1.0
    )
    return box.x + dx * reach, box.y + dy * reach


def _svg(places: dict[str, Point], arrows: Arrows) -> str:
    width = max(x for x, _ in places.values()) + BOX_WIDTH
    height = max(y for _, y in places.values()) + BOX_HEIGHT + LINE_HEIGHT
    # Colours of the page, so that it follows light and dark.
    ink, paper = "var(--md-default-fg-color, #222)", "var(--md-default-bg-color, #fff)"
    parts = [
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="state diagram" '
        f'style="max-width:{width:.0f}px;width:100%;font:11px sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0,0L8,4L0,8z" fill="{ink}"/></marker></defs>',
    ]
    for pair in arrows:
        bend = _bent(places, arrows, pair)
        (x1, y1), (x2, y2) = (_edge(_box(one, places[one]), bend) for one in pair)
        parts.append(
            f'<path d="M{x1:.0f},{y1:.0f}Q{bend[0]:.0f},{bend[1]:.0f} {x2:.0f},{y2:.0f}" '
            f'fill="none" stroke="{ink}" stroke-opacity="0.55" marker-end="url(#tip)"/>'
        )
    for pair, words in arrows.items():
        box = _label(places, arrows, pair)
        for number, word in enumerate(words):
            y = box.y + (number - (len(words) - 1) / 2) * LINE_HEIGHT + 4
            parts.append(
                f'<text x="{box.x:.0f}" y="{y:.0f}" text-anchor="middle" fill="{ink}" '
                f'stroke="{paper}" stroke-width="4" paint-order="stroke">{html.escape(word)}</text>'
            )
    for state, (x, y) in places.items():
        if state in (BEGIN, END):
            hollow = paper if state == END else ink
            parts.append(
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{DOT:.0f}" fill="{hollow}" stroke="{ink}" '
                'stroke-width="3"/>'
            )
            continue
        parts.append(
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" '
            f'width="{BOX_WIDTH:.0f}" height="{BOX_HEIGHT:.0f}" rx="9" fill="{paper}" '
            f'stroke="var(--md-primary-fg-color, #009485)" stroke-width="2"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="{ink}" '
            f'font-size="13">{html.escape(state)}</text>'
        )
    return "".join(["<div>", *parts, "</svg></div>"])
