"""Shapes are checked while the tests run, by jaxtyping and beartype, in functions and dataclasses that name some.

What names none is left as users run it: mypy has read its types.
"""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import jaxtyping

WHOLE = jaxtyping.jaxtyped


def install(*folders: Path) -> None:
    """Checks the modules in these packages' folders that import jaxtyping, when they are imported from now on."""

    def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
        def checked(one: Any) -> Any:
            plain = _plain(vars(one).get("__init__") if is_dataclass(one) else one)
            return one if plain else WHOLE(one, typechecker=typechecker)

        return checked

    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]  # what the hook writes above each function
    modules = [
        ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for folder in folders
        for path in folder.rglob("*.py")
        if "jaxtyping" in path.read_text(encoding="utf-8")
    ]
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _plain(one: Any) -> bool:
    """A function that surely names no shape; one whose annotations cannot be read yet may."""
    if not isinstance(one, FunctionType) or inspect.isgeneratorfunction(one):
        return False
    try:
        hints = inspect.get_annotations(one, eval_str=True).values()
    except Exception:  # a name that is imported for type checkers alone
        return False
    return not any(map(_shaped, hints))


def _shaped(hint: Any) -> bool:
    if isinstance(hint, str | list | tuple):  # a name that is not resolved, or the arguments of a Callable
        return isinstance(hint, str) or any(map(_shaped, hint))
    return (inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(_shaped, get_args(hint)))
