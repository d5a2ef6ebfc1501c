"""The public Python API in lines of text: names, parameters, defaults and public types.

An annotation names builtins, types of the standard library and public types; `*` stands for any
other type, so that a private type may be renamed.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ForwardRef, Literal, get_args, get_origin, is_typeddict

import msgspec
from golden_shapes import shape, value_text

# Types of the standard library, beside the builtins, as words in a text.
_STANDARD_TYPES = """
    AbstractAsyncContextManager AbstractContextManager AbstractEventLoop Annotated Any
    AsyncGenerator AsyncIterable AsyncIterator Awaitable Callable ClassVar Collection
    Coroutine Future Generator Iterable Iterator Literal Mapping NoReturn None Optional Path
    PathLike SSLContext Self Sequence Task TracebackType Unpack datetime timedelta
    """
_BUILTIN_TYPES = """
    bool bytearray bytes dict float frozenset int list memoryview object set str tuple type
    """
# Methods that users call without naming them.
_PROTOCOL_METHODS = """
    __aenter__ __aexit__ __aiter__ __anext__ __await__ __bool__ __call__ __contains__
    __enter__ __exit__ __getitem__ __iter__ __len__ __next__
    """
_STANDARD = frozenset(_STANDARD_TYPES.split())
_BUILTINS = frozenset(_BUILTIN_TYPES.split())
_SPECIAL = frozenset(_PROTOCOL_METHODS.split())
_EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


class Api:
    """Lines about public names; a type is public when it is one of them.

    `only` has classes with methods for Tidegate's own use, and names those that are for users.
    """

    def __init__(
        self, names: Collection[str], only: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self._known = _STANDARD | _BUILTINS | _EXCEPTIONS | set(names)
        self._only = only or {}
        # Whose annotations are read.
        self._module: types.ModuleType | None = None

    def lines(self, name: str, thing: Any) -> Iterator[str]:
        """Everything that is public about one name."""
        if isinstance(thing, types.ModuleType):
            yield f"module {name}"
            for one in sorted(self._only[name]):
                yield from (f"    {line}" for line in self.lines(one, getattr(thing, one)))
        elif not isinstance(thing, type):
            yield from self._other(name, thing)
        elif issubclass(thing, enum.Enum):
            yield f"enum {name}{self._bases(thing)}"
            yield from (f"    {member.name} = {member.value!r}" for member in thing)
        elif is_typeddict(thing):
            yield f"dict {name}"
            hints = {key: _text(hint) for key, hint in thing.__annotations__.items()}
            yield from (f"    {key}: {self._annotation(hint)}" for key, hint in hints.items())
        else:
            yield f"class {name}{self._bases(thing)}"
            yield from self._members(name, thing)

    def _other(self, name: str, thing: Any) -> Iterator[str]:
        if inspect.isfunction(thing):
            yield self._function(name, thing, is_method=False)
        elif value_text(thing) != "*":
            yield f"{name} = {value_text(thing)}"
        else:
            yield f"{name}: type alias or object"

    def _bases(self, kind: type) -> str:
        """Public classes and those of Python that it is a subclass of, the nearest first."""
        names = [base.__name__ for base in kind.__mro__[1:-1] if base.__name__ in self._known]
        marks = ["Protocol"] if getattr(kind, "_is_protocol", False) else []
        if issubclass(kind, msgspec.Struct):
            marks.append("frozen record" if kind.__struct_config__.frozen else "record")
        shown = [*marks, *names]
        return f"({', '.join(shown)})" if shown else ""

    def _members(self, name: str, kind: type) -> Iterator[str]:
        if issubclass(kind, BaseException):
            yield from (
                f"    {key} = {value_text(getattr(kind, key))}"
                for key in ("code", "name", "connection_survives")
                if hasattr(kind, key)
            )
        if issubclass(kind, msgspec.Struct):
            yield from (f"    {line}" for line in shape(kind))
        elif (made := self._constructor(kind)) is not None:
            yield f"    {made}"
        if hasattr(kind, "_fields"):
            hints = kind.__annotations__
            yield from (f"    {key}: {self._annotation(_text(hints[key]))}" for key in kind._fields)
        users = self._only.get(name)
        for member in sorted(dir(kind)):
            is_public = not member.startswith("_") and (users is None or member in users)
            if is_public or member in _SPECIAL:
                yield from (f"    {line}" for line in self._member(kind, member))

    def _constructor(self, kind: type) -> str | None:
        """How it is made; None where that takes private things, so that users make none."""
        made = kind.__dict__.get("__init__") or next(
            (base.__dict__["__init__"] for base in kind.__mro__ if "__init__" in base.__dict__),
            None,
        )
        if not inspect.isfunction(made) or getattr(kind, "_is_protocol", False):
            return None
        self._module = inspect.getmodule(made)
        parameters = list(inspect.signature(made).parameters.values())[1:]
        if any("*" in self._annotation(one.annotation) for one in parameters):
            return None
        return self._function("__init__", made, is_method=True)

    def _member(self, kind: type, member: str) -> Iterator[str]:
        owner = next((one for one in kind.__mro__ if member in one.__dict__), None)
        if owner is None or owner.__module__.partition(".")[0] not in ("tidegate", "tidegate_lab"):
            return
        value = owner.__dict__[member]
        if member in getattr(kind, "_fields", ()) or member in _fields_of_dataclass(kind):
            # Told already, with the constructor or the fields.
            return
        if isinstance(value, types.MemberDescriptorType) or member.startswith("__struct"):
            # A slot: its type stands in the class, and records have been told.
            if not issubclass(kind, msgspec.Struct):
                yield f"{member}"
        elif isinstance(value, property | functools.cached_property):
            function = value.fget if isinstance(value, property) else value.func
            hint = getattr(function, "__annotations__", {}).get("return", "")
            yield f"{member}: {self._annotation(hint)}"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{type(value).__name__} {self._function(member, value.__func__, is_method=True)}"
        elif inspect.isfunction(value):
            yield self._function(member, value, is_method=True)
        elif not issubclass(kind, BaseException):
            yield f"{member} = {value_text(value)}"

    def _function(self, name: str, function: Callable[..., Any], *, is_method: bool) -> str:
        signature = inspect.signature(function)
        self._module = inspect.getmodule(inspect.unwrap(function))
        parameters = list(signature.parameters.values())[1 if is_method else 0 :]
        parts: list[str] = []
        for one in parameters:
            if one.kind is one.KEYWORD_ONLY and not any(p.startswith("*") for p in parts):
                parts.append("*")
            mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
            hint = self._annotation(one.annotation)
            default = "" if one.default is one.empty else f" = {_default(one.default)}"
            parts.append(f"{mark}{one.name}: {hint}{default}")
            if one.kind is one.POSITIONAL_ONLY:
                parts.append("/")
        waits = "async " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
        returned = self._annotation(signature.return_annotation)
        return f"{waits}def {name}({', '.join(parts)}) -> {returned}"

    def _annotation(self, hint: Any) -> str:
        if hint is inspect.Parameter.empty or hint == "":
            return "-"
        text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        return self._public_only(ast.parse(text.strip("'\""), mode="eval").body)

    def _public_only(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return self._annotation(text)
            case ast.Constant(value=value):
                return "..." if value is Ellipsis else repr(value)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name if name in self._known else self._choices(name)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return f"{self._public_only(left)} | {self._public_only(right)}"
            case ast.Subscript(value=value, slice=inside):
                of = self._public_only(value)
                if of == "*":
                    return of
                if of == "Literal":
                    return ast.unparse(node).rpartition(".")[2]
                return f"{of}[{self._public_only(inside)}]"
            case ast.Tuple(elts=parts):
                return ", ".join(map(self._public_only, parts))
            case ast.List(elts=parts):
                return f"[{', '.join(map(self._public_only, parts))}]"
        return "*"

    def _choices(self, name: str) -> str:
        """What a private name of a type allows, where it is a list of words."""
        value = None if self._module is None else _named(self._module, name)
        if get_origin(value) is Literal:
            return f"Literal[{', '.join(map(repr, get_args(value)))}]"
        return "*"


def _named(module: types.ModuleType, name: str) -> Any:
    """What a name means in a module, also where only a type checker imports it."""
    if hasattr(module, name):
        return getattr(module, name)
    origin = _imports(module).get(name)
    return None if origin is None else getattr(importlib.import_module(origin), name, None)


@functools.cache
def _imports(module: types.ModuleType) -> Mapping[str, str]:
    """Where the names come from that a module imports of Tidegate."""
    found = ast.walk(ast.parse(inspect.getsource(module)))
    return {
        alias.name: one.module
        for one in found
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("tidegate")
        for alias in one.names
    }


def _default(value: Any) -> str:
    return "..." if value is Ellipsis else value_text(value)


def _text(hint: Any) -> Any:
    return hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint


def _fields_of_dataclass(kind: type) -> Collection[str]:
    return [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else ()


def public_names(module: types.ModuleType) -> Mapping[str, Any]:
    """What a module says that it offers."""
    return {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
