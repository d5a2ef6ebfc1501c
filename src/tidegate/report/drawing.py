"""Charts as pictures: SVG for a page, or axes on a page of a PDF.

matplotlib draws in the light colours. In the SVG each colour is replaced by the stylesheet's
variable of the same meaning. The chart thereby follows the reader's light or dark mode. Text stays
text, in the font of the page. The output does not depend on the date or the machine.
"""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tidegate.core.harmless import harmless
from tidegate.report import palette
from tidegate.report.chart import Chart

WIDTH_IN = 4.85
_TOP_IN, _BOTTOM_IN = 0.34, 0.34

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    # A name such as $x$ must not be parsed as mathematics.
    "text.parse_math": False,
    "text.color": palette.INK.light,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": palette.AXIS.light,
    "axes.linewidth": 0.9,
    "axes.labelcolor": palette.SOFT.light,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": palette.GRID.light,
    "grid.linewidth": 0.9,
    "xtick.color": palette.AXIS.light,
    "ytick.color": palette.AXIS.light,
    "xtick.labelcolor": palette.SOFT.light,
    "ytick.labelcolor": palette.SOFT.light,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.major.pad": 5.0,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.id": None,
    "pdf.fonttype": 42,
}

_VARIABLES = {colour.light: colour.variable for colour in palette.ALL}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FAMILY = re.compile(r"font-family: [^;]*;? ?")
_FONT = re.compile(r"font: (.*?px) [^;]*")
_DECIMALS = re.compile(r"(\d+\.\d{2})\d+")
_NAMESPACE = re.compile(r"^\{[^}]*\}")
_NOT_TO_BE_SHOWN = {"metadata", "style"}


def svg_of(chart: Chart, name: str, description: str) -> str:
    """Return the chart as an SVG element; `name` makes its ids unique within the page."""
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH_IN, chart.height_in))
        FigureCanvasSVG(figure)
        draw_into(figure, chart, (0.0, 0.0, WIDTH_IN, chart.height_in))
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return _for_a_page(written.getvalue(), description)


def draw_into(figure: Figure, chart: Chart, box_in: tuple[float, float, float, float]) -> Axes:
    """Draw the chart into a box of a figure: left, bottom, width and height in inches."""
    left, bottom, width, height = box_in
    whole_width, whole_height = figure.get_size_inches()
    axes = figure.add_axes(
        (
            (left + chart.ticks_in) / whole_width,
            (bottom + _BOTTOM_IN + chart.foot_in) / whole_height,
            (width - chart.ticks_in - chart.label_in) / whole_width,
            (height - _TOP_IN - _BOTTOM_IN - chart.foot_in) / whole_height,
        )
    )
    chart.draw(axes)
    figure.text(
        (left + 0.06) / whole_width,
        (bottom + height - 0.05) / whole_height,
        chart.measures,
        ha="left",
        va="top",
        fontsize=9.0,
        color=palette.SOFT.light,
    )
    return axes


def _for_a_page(svg: str, description: str) -> str:
    drawn = ElementTree.fromstring(svg)
    picture = ElementTree.Element(
        "svg",
        {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-label": harmless(description)},
    )
    picture.extend(_adapted(child) for child in drawn)
    return ElementTree.tostring(picture, encoding="unicode")


def _adapted(element: ElementTree.Element) -> ElementTree.Element:
    """Return a copy of an SVG element without namespaces, with page colours and shorter numbers."""
    adapted = ElementTree.Element(_NAMESPACE.sub("", element.tag))
    adapted.text = (element.text or "").strip()
    for name, value in element.attrib.items():
        name = _NAMESPACE.sub("", name)
        # The ids of groups repeat from figure to figure; the other ids are salted with the chart's
        # name.
        if adapted.tag == "g" and name == "id":
            continue
        if name == "style":
            value = _FONT.sub(r"font: \1 var(--sans)", _FAMILY.sub("", value))
            value = _COLOUR.sub(lambda found: _VARIABLES.get(found[0], found[0]), value)
        elif name != "href":
            value = " ".join(_DECIMALS.sub(r"\1", value).split())
        adapted.set(name, value)
    children = (_adapted(child) for child in element)
    adapted.extend(child for child in children if child.tag not in _NOT_TO_BE_SHOWN)
    return adapted
