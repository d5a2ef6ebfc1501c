"""A user's module, imported from where the process runs; an error says what was tried."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tidegate.core.errors import InvalidValue


def imported(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        # As python itself does: what lies here can be named.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as failure:
        missing = failure.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise InvalidValue(
                f"no module {module_name!r}: looked in {here} and where Python finds packages"
            ) from None
        traceback.print_exc()
        raise InvalidValue(
            f"{module_name!r} was found, but imports {missing!r}, which is not installed"
        ) from None
    except Exception as failure:
        traceback.print_exc()
        raise InvalidValue(
            f"{module_name!r} fails when imported: {type(failure).__name__}: {failure}"
        ) from None
