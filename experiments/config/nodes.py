"""A configuration's nodes with a ``_target_``: checked against its dataclass or signature, and built."""

import dataclasses
import importlib
import inspect
from difflib import get_close_matches
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from interp.errors import UserError
from mitigation.wrappers import Shifted, ShiftedTrainable


def made(node: Any, key: str) -> Any:
    """Return the object that the node describes, or with ``_partial_`` its function with the arguments bound.

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
    """Return the node with its arguments checked against the target's signature and converted to its field types.

    A method may have a ``shift`` that its target does not take: the method is then wrapped (``mitigation.wrappers``).

    Raises:
        UserError: the target cannot be imported, has no such argument, or an argument has a wrong type.
    """
    module, _, name = node["_target_"].rpartition(".")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key}._target_={module}.{name}: cannot be imported ({error})") from error
    parameters = list(inspect.signature(target).parameters)
    learns = hasattr(target, "learn")
    if "shift" in node and "shift" not in parameters and (learns or hasattr(target, "generate")):
        wrapper = ShiftedTrainable if learns else Shifted
        shift = _typed(wrapper, {"shift": node["shift"]}, key)
        method = _checked({option: value for option, value in node.items() if option != "shift"}, key)
        if not shift["shift"]:
            return method
        return {"_target_": f"{wrapper.__module__}.{wrapper.__name__}", "method": method} | shift
    special = {option: value for option, value in node.items() if option.startswith("_")}
    given = {
        option: _checked(value, f"{key}.{option}") if isinstance(value, dict) and "_target_" in value else value
        for option, value in node.items()
        if option not in special
    }
    for option in given:
        if option not in parameters:
            near = get_close_matches(option, parameters, n=1)
            meant = f"did you mean {key}.{near[0]}?" if near else f"known: {', '.join(parameters)}"
            raise UserError(f"{key}.{option}: {node['_target_']} has no such argument; {meant}")
    return special | (_typed(target, given, key) if dataclasses.is_dataclass(target) else given)


def _typed(target: Any, given: dict[str, Any], key: str) -> dict[str, Any]:
    """Return ``given`` converted to the types of the dataclass ``target``; nested nodes stay as they are.

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
