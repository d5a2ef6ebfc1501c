"""Settings: every key with its default and what it takes, and variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from golden_files import Golden
from golden_shapes import shape, value_text

import tidegate
from tidegate.cli.settings import Settings, SettingsInvalid, as_document, load_settings
from tidegate.core.topology import KEYS

# What a key takes shows what it is: a number, a duration, a size, a list, any text.
_TRIED = ("word", "-1", "0", "1", "0.5", "7", "true", "0s", "30s", "16MiB", "a,b", "90000000000")
_WORDS = ("auto", "recommend-only", "manual", "fixed", "load", "clients", "feed-forward", "length")
_TRIED_OF_A_QUEUE = (*_TRIED, *_WORDS, "agreement", "energy", "performance", "a:b", "400/s", "off")

_OURS = re.compile(r"""["'](TIDEGATE_[A-Z]+(?:_[A-Z]+)*)["']""")
_ASKED_FOR = re.compile(r"""\b(?:environ|environment)(?:\[|\.\w+\()["']([A-Z_]+)["']""")


def test_settings_are_as_they_were(golden: Golden) -> None:
    golden("settings/settings.txt", _settings())


def test_settings_of_a_queue_are_as_they_were(golden: Golden) -> None:
    golden("settings/queues.txt", _settings_of_a_queue())


def test_variables_of_the_environment_are_as_they_were(golden: Golden) -> None:
    golden("settings/environment.txt", _variables())


def _settings() -> Iterator[str]:
    sections = get_type_hints(Settings)
    for section, keys in as_document(Settings()).items():
        hints = get_type_hints(sections[section], include_extras=True)
        kinds = get_type_hints(sections[section])
        names = {one.encode_name: one.name for one in msgspec.structs.fields(sections[section])}
        for key, default in keys.items():
            variable = f"TIDEGATE_{section.upper()}__{key.upper()}"
            hint = hints[names[key]]
            (kind, *_) = shape(kinds[names[key]], f"{section}.{key}")
            yield f"{kind}{_bounds(hint)} = {value_text(default)}"
            tried = [*_TRIED, *map(str, _options(kinds[names[key]])), *_edges(hint)]
            yield f"    {variable}: {_taken(variable, section, key, tried)}"


def _settings_of_a_queue() -> Iterator[str]:
    defaults = as_document(_loaded("TIDEGATE_QUEUES__ORDERS__MIN_LOAD", "50"))["queues.orders"]
    for key in [*KEYS, "prefetch"]:
        variable = f"TIDEGATE_QUEUES__ORDERS__{key.upper()}"
        yield f"{key} = {value_text(defaults.get(key))}"
        yield f"    {variable}: {_taken(variable, 'queues.orders', key, _TRIED_OF_A_QUEUE)}"


def _taken(variable: str, section: str, key: str, tried: Any) -> str:
    """Which texts the key takes, each with what is made of it."""
    found = []
    for text in dict.fromkeys(tried):
        try:
            value = as_document(_loaded(variable, text)).get(section, {}).get(key)
        except SettingsInvalid:
            continue
        found.append(f"{text} -> {value_text(value)}")
    return "; ".join(found)


def _loaded(variable: str, text: str) -> Settings:
    return load_settings(None, {variable: text})


def _bounds(hint: Any) -> str:
    edges = _limits(hint)
    return f" from {value_text(edges[0])} to {value_text(edges[1])}" if edges else ""


def _limits(hint: Any) -> tuple[float, float] | None:
    # A key that may be absent has its bounds within a union.
    for one in (hint, *get_args(hint)):
        for note in getattr(one, "__metadata__", ()):
            if isinstance(note, msgspec.Meta):
                assert note.ge is not None
                assert note.le is not None
                return float(note.ge), float(note.le)
    return None


def _edges(hint: Any) -> list[str]:
    """Values at the bounds, written as a number and as a duration."""
    numbers = [f"{limit:.0f}" for limit in _limits(hint) or () if limit == int(limit)]
    return [*numbers, *(f"{number}s" for number in numbers)]


def _options(kind: Any) -> list[Any]:
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _variables() -> Iterator[str]:
    """Variables that code names, without those of settings: the product's, then the lab's."""
    package = Path(tidegate.__file__).parent
    folders = [package, package.parent / "tidegate_lab"]
    found: dict[str, set[str]] = {"tidegate": set(), "lab": set()}
    for file in (one for folder in folders for one in folder.rglob("*.py")):
        where = file.relative_to(package.parent).parts[:2]
        is_lab = where[0] == "tidegate_lab" or where[1] == "lab"
        found["lab" if is_lab else "tidegate"] |= set(_variables_of(file.read_text()))
    for name in sorted(found["tidegate"]):
        yield name
    for name in sorted(found["lab"] - found["tidegate"]):
        yield f"lab: {name}"


def _variables_of(text: str) -> Iterator[str]:
    yield from _OURS.findall(text)
    yield from (name for name in _ASKED_FOR.findall(text) if "__" not in name)
