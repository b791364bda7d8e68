"""From a composed configuration to a ``Run``, all of it checked.

A node with a ``_target_`` is checked against its dataclass or signature, and built.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from experiments.config.run import Run, Settings, answered_elsewhere, register
from experiments.judges.yes_no import Automatic
from experiments.runs.responses import NoModel
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


ONE_OF = {"protocol": ("generate", "score")}
LEAST = {  # option → its least value
    "seed": 0,
    **dict.fromkeys(("batch_tokens", "limit", "batch_size", "max_new_tokens", "draws", "attention_cases"), 1),
}
TOKENS = 16  # of an answer, if neither the run, nor its model, nor its benchmark says how many


def composed(arguments: Sequence[str]) -> DictConfig:
    """Return the configuration of a command, outside Hydra's own command line."""
    register()
    GlobalHydra.instance().clear()
    with initialize(config_path=None, version_base="1.3"):
        config = compose("config", overrides=list(arguments), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return config


def build_run(config: DictConfig) -> Run:
    """Check the configuration and build the run.

    Raises:
        UserError: a value is missing, of a wrong type or out of range, or a target has no such argument.
    """
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    tree = _plain(config)
    _check_values(tree)
    if tree["force"] and "path" in tree["model"]:
        tree["model"]["force"] = True
    tree["model"] = named_by_what_is_loaded(tree["model"])
    arm = arm_name(str(choices.get("method", "method")), tree)
    baseline = tree["arms"].get("baseline", {"_target_": "mitigation.method.Baseline"})
    nodes = {"baseline": baseline, arm: baseline if arm == "baseline" else tree["method"]}
    nodes |= {name: node for name, node in tree["arms"].items() if name not in nodes}
    arms = {name: made(node, f"arms.{name}") for name, node in nodes.items()}
    others = {name: method for name, method in arms.items() if name != "baseline"}
    if others and answered_elsewhere(others) and "baseline" not in tree["arms"]:
        arms, nodes = others, {name: nodes[name] for name in others}  # no model's baseline next to answers of others
    elsewhere = answered_elsewhere(arms)
    tree["model"] = None if elsewhere else tree["model"]
    # Not a part of the configuration: a run that stopped at a bad case continues without that case.
    skip_bad = tree["benchmark"].pop("skip_bad", False)
    if not isinstance(skip_bad, bool):
        raise UserError(f"benchmark.skip_bad={skip_bad!r}: must be true or false")
    benchmark, judge = made(tree["benchmark"], "benchmark"), made(tree["judge"], "judge")
    built = {
        "model": NoModel(arms[arm].name) if elsewhere else made(tree["model"], "model"),
        "benchmark": benchmark,
        "judge": judge.for_kind(benchmark.kind) if isinstance(judge, Automatic) else judge,
        "arms": arms,
        "attention_analysis": made(tree["attention_analysis"], "attention_analysis") if tree["attention"] else None,
        "task": made(tree["task"], "task"),  # last: a task's module is slow to import
    }
    if tree["plan"] is not None:  # task=plan in front of the task that it plans
        built["task"] = made(tree["plan"], "task")
    settings = {field.name: tree[field.name] for field in dataclasses.fields(Settings)}
    settings["max_new_tokens"] = tree["max_new_tokens"]
    return Run(**settings, **built, arm=arm, config=tree | {"arms": nodes}, skip_bad=skip_bad)


def _plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain values, with the number of tokens of an answer.

    Raises:
        UserError: a value is missing or refers to something that is not there.
    """
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise UserError(f"{missing[0]}: has no value; give it on the command line: {missing[0]}=<value>")
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:  # ${…} in a value
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    tree: dict[str, Any] = {str(key): value for key, value in plain.items()}
    if tree["max_new_tokens"] is None:
        tree["max_new_tokens"] = tree["model"].get("answer_tokens") or tree["benchmark"].get("answer_tokens") or TOKENS
    return tree


def _check_values(tree: dict[str, Any]) -> None:
    """Check the ranges of the plain values.

    Raises:
        UserError: names the first value out of range.
    """
    for key, values in ONE_OF.items():
        if tree[key] not in values:
            raise UserError(f"{key}={tree[key]}: must be one of {', '.join(values)}")
    for key, least in LEAST.items():
        if tree[key] is not None and tree[key] < least:
            raise UserError(f"{key}={tree[key]}: must be at least {least}")
    if (point := tree["operating_point"]) is not None and not 0 < point < 1:
        raise UserError(f"operating_point={point}: must lie between 0 and 1 (unsafe cases caught), or null")


def arm_name(option: str, tree: Mapping[str, Any]) -> str:
    """Return the name of the arm under study: its option's name, or the name of a user's file without ``.py``.

    Raises:
        UserError: the file is called as another arm.
    """
    path = tree["method"].get("path") if option == "file" else None
    name = Path(str(path)).stem if path else option.rpartition("/")[2]  # method=tuned/vcd is the arm vcd
    if path and (name == "baseline" or name in tree["arms"]):
        raise UserError(f"method.path={path}: there is an arm {name} already; give the file another name")
    return name


def named_by_what_is_loaded(node: dict[str, Any]) -> dict[str, Any]:
    """Return the model's node; if the command line gives its path and no name, the path's last part is its name.

    For a model behind an API, its id is the path.
    """
    option = "model" if "base_url" in node else "path"
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    if not node.get(option) or f"model.{option}" not in given or "model.name" in given:
        return node
    path = str(node[option])
    last = path.rstrip("/").rpartition("/")[2]
    return node | {"name": (Path(path).resolve().name or path) if last in ("", ".", "..") else last}
