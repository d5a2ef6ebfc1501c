"""Colours by what they mean, in light and in dark.

Muted, and told apart by people who see colours differently: blue, amber, teal and brick differ in
lightness too, and wherever a colour carries a verdict, a word or a shape says the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """One meaning in both lights."""

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """What a stylesheet calls it."""
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
    """The colours as a stylesheet's variables: light, and dark for those who ask for it."""
    light = " ".join(f"--{colour.name}:{colour.light};" for colour in ALL)
    dark = " ".join(f"--{colour.name}:{colour.dark};" for colour in ALL)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        # Paper is white, whatever the screen is.
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
