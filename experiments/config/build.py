"""From a composed configuration to a ``Run``, all of it checked."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from experiments.config.nodes import made
from experiments.config.options import register_entries
from experiments.config.run import SKIP, Run, Schema, Settings, answered_elsewhere, without_skipping
from experiments.judges.automatic import Automatic
from experiments.runs.responses import NoModel
from experiments.types import Benchmark, Judge
from interp.errors import UserError

ONE_OF = {"protocol": ("generate", "score")}
LEAST = {  # option → its least value, and what else there is
    "seed": (0, ""),
    "image_workers": (0, ", which switches it off"),
    "feature_cache_mib": (0, ", which switches it off"),
    "batch_tokens": (1, ", or null for batches in order"),
    "limit": (1, ", or null for all cases"),
    **dict.fromkeys(("batch_size", "max_new_tokens", "draws", "attention_cases"), (1, "")),
}
OWN = "file"  # the option of a method in a file of the user's


@cache
def register() -> None:
    """Registers with Hydra, once, what has no file: ``Schema`` as ``run_schema``, and the entries of ``LISTED``."""
    schema = OmegaConf.structured(Schema)
    OmegaConf.set_readonly(schema, None)  # a frozen dataclass would make the whole configuration read-only
    ConfigStore.instance().store(name="run_schema", node=schema)
    register_entries()


def composed(arguments: Sequence[str]) -> DictConfig:
    """The configuration of a command, outside Hydra's own command line."""
    register()
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base="1.3"):
        config = compose("config", overrides=list(arguments), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return config


def build_run(config: DictConfig) -> Run:
    """Checks the configuration and builds the run.

    Raises:
        UserError: a value is missing, of a wrong type or out of range, or a target has no such argument.
    """
    check_method_fits(OmegaConf.select(config, "only_method"))
    try:
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise UserError(f"{missing[0]}: has no value; give it on the command line: {missing[0]}=<value>")
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:  # ${…} in a value
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    assert isinstance(plain, dict)
    tree: dict[str, Any] = {str(key): value for key, value in plain.items()}
    _check_values(tree)
    if tree["force"] and isinstance(tree["model"], dict) and "path" in tree["model"]:
        tree["model"]["force"] = True
    tree["model"] = named_by_what_is_loaded(tree["model"])
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    arm = arm_name(str(choices.get("method", "method")), tree)
    baseline = tree["arms"].get("baseline", {"_target_": "mitigation.method.Baseline"})
    nodes = {"baseline": baseline, arm: baseline if arm == "baseline" else tree["method"]}
    nodes |= {name: node for name, node in tree["arms"].items() if name not in nodes}
    arms = {name: made(node, f"arms.{name}") for name, node in nodes.items()}
    others = {name: method for name, method in arms.items() if name != "baseline"}
    if others and answered_elsewhere(others) and "baseline" not in tree["arms"]:
        arms, nodes = others, {name: nodes[name] for name in others}  # no model's baseline beside answers of others
    alone = answered_elsewhere(arms)
    tree["model"] = None if alone else tree["model"]
    built = {
        "model": NoModel(arms[arm].name) if alone else made(tree["model"], "model"),
        "benchmark": (benchmark := made(without_skipping(tree["benchmark"]), "benchmark")),
        "judge": _judge(tree["judge"], benchmark),
        "arms": arms,
        "attention_analysis": made(tree["attention_analysis"], "attention_analysis") if tree["attention"] else None,
        "task": made(tree["task"], "task"),  # last: a task's module is slow to import
    }
    if tree.get("plan") is not None:  # task=plan in front of the task that it plans
        built["task"] = made(tree["plan"], "task")
    settings = {field.name: tree[field.name] for field in dataclasses.fields(Settings)}
    skip_bad = _skips(tree["benchmark"])
    return Run(**settings, **built, arm=arm, config=tree | {"arms": nodes}, skip_bad=skip_bad)


def _skips(node: Any) -> bool:
    """Whether cases that fail their checks are left out.

    Raises:
        UserError: the value is neither true nor false.
    """
    value = node.get(SKIP, False) if isinstance(node, dict) else False
    if not isinstance(value, bool):
        raise UserError(f"benchmark.{SKIP}={value!r}: must be true or false")
    return value


def _check_values(tree: dict[str, Any]) -> None:
    """Checks the ranges of the plain values.

    Raises:
        UserError: names the first value out of range.
    """
    for key, values in ONE_OF.items():
        if tree[key] not in values:
            raise UserError(f"{key}={tree[key]}: must be one of {', '.join(values)}")
    for key, (least, otherwise) in LEAST.items():
        if tree[key] is not None and tree[key] < least:
            raise UserError(f"{key}={tree[key]}: must be at least {least}{otherwise}")
    if (point := tree["operating_point"]) is not None and not 0 < point < 1:
        raise UserError(f"operating_point={point}: must lie between 0 and 1 (unsafe cases caught), or null")


def _judge(node: Any, benchmark: Benchmark) -> Judge:
    """The configured judge, or the default for the benchmark's kind. Raises as ``made`` does."""
    judge = made(node, "judge")
    return judge.for_kind(benchmark.kind) if isinstance(judge, Automatic) else judge


def arm_name(option: str, tree: Mapping[str, Any]) -> str:
    """The name of the arm under study: that of its option, or of a user's own file without ``.py``.

    Raises:
        UserError: the file is called as another arm.
    """
    path = tree["method"].get("path") if option == OWN and isinstance(tree["method"], dict) else None
    name = Path(str(path)).stem if path else option.rpartition("/")[2]  # method=tuned/vcd is the arm vcd
    if path and (name == "baseline" or name in tree["arms"]):
        raise UserError(f"method.path={path}: there is an arm {name} already; give the file another name")
    return name


def check_method_fits(only: str | None) -> None:
    """Refuses another method than ``only``, that of an experiment which gives its settings to other arms.

    Raises:
        UserError: names the experiment, and how to add the method beside its own.
    """
    if only is None or not HydraConfig.initialized():
        return
    choices = HydraConfig.get().runtime.choices
    if (chosen := str(choices.get("method"))) != only:
        raise UserError(
            f"+exp={choices.get('exp')} is about method={only}, and gives its settings to other arms; leave method "
            f"out, or add {chosen} as a further arm: +method@arms.{chosen.replace('/', '_')}={chosen}"
        )


def named_by_what_is_loaded(node: Any) -> Any:
    """The model's node; where the command line gives its path and no name, the path's last part is its name.

    Of a model behind an API the id there stands for the path.
    """
    if not (isinstance(node, dict) and HydraConfig.initialized()):
        return node
    option = "model" if "base_url" in node else "path"
    given = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    moved = f"model.{option}" in given and "model.name" not in given
    return node | {"name": _last_part(str(node[option]))} if moved and node.get(option) else node


def _last_part(path: str) -> str:
    """The last part of a path or hub id; of "." and the like that of the folder meant."""
    last = path.rstrip("/").rpartition("/")[2]
    return Path(path).resolve().name or path if last in ("", ".", "..") else last
