"""What is annotated is checked while the tests run, by beartype; shapes by jaxtyping, in functions that name some.

jaxtyping's own hook binds the arguments of every call to a memory of shapes: an eighth of the time of a study's tests.
"""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

WHOLE = jaxtyping.jaxtyped
PLAIN = beartype(conf=BeartypeConf(violation_type=TypeError))


def install(*packages: str) -> None:
    """Checks what is imported from these packages from now on."""

    def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
        def checked(one: Any) -> Any:
            if is_dataclass(one) and _plain(vars(one).get("__init__")):
                one.__init__ = PLAIN(one.__init__)
                return one
            return PLAIN(one) if _plain(one) else WHOLE(one, typechecker=typechecker)

        return checked

    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]  # what the hook writes above each function
    jaxtyping.install_import_hook(packages, "beartype.beartype")


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
