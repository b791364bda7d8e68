"""From a composed configuration to a ``Run``, all of it checked."""

import dataclasses
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config.choices import arm_name, check_method_fits, named_by_what_is_loaded
from experiments.config.nodes import made
from experiments.config.run import SKIP, Run, Schema, Settings, answered_elsewhere, without_skipping
from experiments.judges.automatic import Automatic
from experiments.runs.responses import NoModel
from experiments.types import Benchmark, Judge
from interp.errors import UserError

NOWHERE = "nowhere"  # the folder of a benchmark that is only planned for
ATTRIBUTIONS = ("none", "captum")
PROTOCOLS = ("generate", "score")  # experiments/evaluation/answer.py


def register() -> None:
    """Registers ``Schema`` with Hydra as ``run_schema``, the first entry of the defaults list."""
    schema = OmegaConf.structured(Schema)
    OmegaConf.set_readonly(schema, None)  # a frozen dataclass would make the whole configuration read-only
    ConfigStore.instance().store(name="run_schema", node=schema)


def build_run(config: DictConfig) -> Run:
    """Checks the configuration and builds the run.

    Raises:
        UserError: a value is missing, of a wrong type or out of range, or a target has no such argument.
    """
    check_method_fits(OmegaConf.select(config, "only_method"))
    if OmegaConf.select(config, "plan") is not None and "root" in config.benchmark:
        unset = OmegaConf.is_missing(config.benchmark, "root") or config.benchmark.root is None
        config.benchmark.root = NOWHERE if unset else config.benchmark.root
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
        "parts": None if tree.get("parts") is None else made(tree["parts"], "parts"),
        "plan": None if tree.get("plan") is None else made(tree["plan"], "task"),
        "task": made(tree["task"], "task"),  # last: a task's module is slow to import
    }
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
    if tree["attribution"] not in ATTRIBUTIONS:
        raise UserError(f"attribution={tree['attribution']}: must be one of {', '.join(ATTRIBUTIONS)}")
    if tree["protocol"] not in PROTOCOLS:
        raise UserError(f"protocol={tree['protocol']}: must be one of {', '.join(PROTOCOLS)}")
    if tree["seed"] < 0:
        raise UserError(f"seed={tree['seed']}: must be at least 0")
    for key in ("image_workers", "feature_cache_mib", "verbose"):
        if tree[key] < 0:
            raise UserError(f"{key}={tree[key]}: must be at least 0, which switches it off")
    if tree["batch_tokens"] is not None and tree["batch_tokens"] < 1:
        raise UserError(f"batch_tokens={tree['batch_tokens']}: must be at least 1, or null for batches in order")
    for key in ("batch_size", "max_new_tokens", "draws", "attention_cases"):
        if tree[key] < 1:
            raise UserError(f"{key}={tree[key]}: must be at least 1")
    if tree["limit"] is not None and tree["limit"] < 1:
        raise UserError(f"limit={tree['limit']}: must be at least 1, or null for all cases")


def _judge(node: Any, benchmark: Benchmark) -> Judge:
    """The configured judge, or the default for the benchmark's kind. Raises as ``made`` does."""
    judge = made(node, "judge")
    return judge.for_kind(benchmark.kind) if isinstance(judge, Automatic) else judge
