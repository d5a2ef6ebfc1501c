"""Groups of options that several commands share.

    @dataclass(frozen=True)
    class GoalOptions:
        settle: SettleOption = None             each field is an option with its default

    @flatten_options()
    def policy(queue: QueueArgument, goal: GoalOptions = NO_GOAL) -> None: ...

Typer reads the options from the signature of the command. The decorator replaces each group in the
signature by the fields of the group.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints

Command = Callable[..., None]


def spread(*left_out: str) -> Callable[[Command], Command]:
    """Return a decorator that replaces option groups in a command's signature by their fields.

    Fields in `left_out` are no options, and keep their defaults.
    """

    def spread_out(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            kind = hints[name]
            if not (isinstance(kind, type) and is_dataclass(kind)):
                kept = parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
                parameters.append(kept)
                continue
            options = [field for field in fields(kind) if field.name not in left_out]
            types = get_type_hints(kind, include_extras=True)
            groups[name] = (kind, [option.name for option in options])
            parameters += [
                Parameter(
                    option.name,
                    Parameter.KEYWORD_ONLY,
                    default=option.default,
                    annotation=types[option.name],
                )
                for option in options
            ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name, (kind, names) in groups.items():
                given[name] = kind(**{one: given.pop(one) for one in names})
            command(**given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return spread_out
