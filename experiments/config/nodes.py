"""A configuration's nodes with a ``_target_``: checked against its dataclass or signature, and built."""

import dataclasses
import importlib
import inspect
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from interp.errors import UserError
from mitigation.wrappers import Shifted, ShiftedTrainable


def made(node: Any, key: str) -> Any:
    """The object that the node describes, or with ``_partial_`` its function with the arguments bound.

    Raises:
        UserError: no ``_target_``, wrong arguments (``_checked``), or the target itself refuses them.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        raise UserError(f"{key}: has no _target_; choose one of the options in conf/{key.split('.')[0]}/")
    try:
        return instantiate(_checked(node, key), _convert_="object")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from error


def _checked(node: dict[str, Any], key: str) -> dict[str, Any]:
    """The node with its arguments checked against the target's signature and converted to its dataclass's types.

    A method node may have a ``shift`` that its target has no argument for: the method is then wrapped
    (``mitigation.wrappers``).

    Raises:
        UserError: the target cannot be imported, has no such argument, or an argument has a wrong type.
    """
    target = _imported(node["_target_"], key)
    if "shift" in node and "shift" not in inspect.signature(target).parameters and _answers(target):
        return _shifted(node, target, key)
    special = {name: value for name, value in node.items() if name.startswith("_")}
    given = {
        name: _checked(value, f"{key}.{name}") if isinstance(value, dict) and "_target_" in value else value
        for name, value in node.items()
        if name not in special
    }
    parameters = list(inspect.signature(target).parameters)
    for name in given:
        if name not in parameters:
            raise UserError(f"{key}.{name}: {special['_target_']} has no such argument; known: {', '.join(parameters)}")
    if dataclasses.is_dataclass(target):
        given = _typed(target, given, key)
    return special | given


def _answers(target: Any) -> bool:
    """Whether ``target`` is a method, one that generates or that is trained to."""
    return hasattr(target, "generate") or hasattr(target, "learn")


def _shifted(node: dict[str, Any], target: Any, key: str) -> dict[str, Any]:
    """The checked node of a method in ``Shifted``, or of the method alone where ``shift`` is 0."""
    wrapper = ShiftedTrainable if hasattr(target, "learn") else Shifted
    shift = _typed(wrapper, {"shift": node["shift"]}, key)
    method = _checked({name: value for name, value in node.items() if name != "shift"}, key)
    if not shift["shift"]:
        return method
    return {"_target_": f"{wrapper.__module__}.{wrapper.__name__}", "method": method} | shift


def _imported(path: str, key: str) -> Any:
    """The object at the dotted ``path``.

    Raises:
        UserError: it cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key}._target_={path}: cannot be imported ({str(error).splitlines()[0]})") from error


def _typed(target: Any, given: dict[str, Any], key: str) -> dict[str, Any]:
    """``given`` converted to the types of the dataclass ``target``; nested nodes stay as they are.

    Raises:
        UserError: a value cannot be converted.
    """
    schema = OmegaConf.structured(target)
    OmegaConf.set_readonly(schema, False)
    for name, value in given.items():
        if isinstance(value, dict) and "_target_" in value:
            continue
        try:
            # Nothing can be merged into a null.
            OmegaConf.update(schema, name, value, merge=OmegaConf.select(schema, name) is not None)
        except OmegaConfBaseException as error:
            raise UserError(f"{key}.{name}={value!r}: {str(error).splitlines()[0]}") from error
    merged = OmegaConf.to_container(schema)
    assert isinstance(merged, dict)
    return {name: merged.get(name, value) if not isinstance(value, dict) else value for name, value in given.items()}
