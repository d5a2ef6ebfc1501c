"""Colours by meaning, for light and dark mode.

Blue, amber, teal and brick differ in lightness too, so that colour-blind readers can distinguish
them. Wherever a colour shows a verdict, a word or a shape shows it as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A colour of one meaning, in light and in dark mode."""

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """The reference to this colour in a stylesheet."""
        return f"var(--{self.name})"


INK = Colour("ink", "#1c2228", "#e9edf1")
SOFT = Colour("soft", "#5a646e", "#a6b0ba")
AXIS = Colour("axis", "#b9c2ca", "#4a545e")
GRID = Colour("grid", "#e8ecef", "#262d35")
PAGE = Colour("page", "#fefefe", "#12171c")
PANEL = Colour("panel", "#f5f7f8", "#1a2027")
BLUE = Colour("blue", "#2a6898", "#74b3e2")
AMBER = Colour("amber", "#b06f14", "#e2a950")
TEAL = Colour("teal", "#24796c", "#5fc0ae")
BRICK = Colour("brick", "#ab3c3a", "#ef877f")
VIOLET = Colour("violet", "#725e9c", "#b7a4e0")
GREY = Colour("grey", "#6e7983", "#8b96a0")
PALE = Colour("pale", "#d3dae0", "#39434d")

ALL = (INK, SOFT, AXIS, GRID, PAGE, PANEL, BLUE, AMBER, TEAL, BRICK, VIOLET, GREY, PALE)

PRODUCED = BLUE
CONSUMED = TEAL
VERDICTS = {"met": TEAL, "warned": AMBER, "breached": BRICK, "no_data": GREY}
STABILITIES = {"stable": TEAL, "flooded": BRICK, "draining": BLUE}


def variables() -> str:
    """Return the stylesheet that defines all colours, for light and dark mode."""
    light = " ".join(f"--{colour.name}:{colour.light};" for colour in ALL)
    dark = " ".join(f"--{colour.name}:{colour.dark};" for colour in ALL)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        # Use the dark colours on screens only; paper is white.
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
