"""Names of a package that are imported when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_names(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for the module `package` (PEP 562): what has the name in the module that the table
    says, be it that module's attribute or a module below it. AttributeError for all others."""

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(module_of[name])
        return getattr(module, name) if hasattr(module, name) else import_module(f"{module_of[name]}.{name}")

    return get
