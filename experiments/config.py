"""From a Hydra configuration to one typed ``Run``. No other module sees a DictConfig; torch is not imported here.

Mistakes are reported with their key before any weights load: unknown keys and wrong types at the top level by Hydra
(through ``Schema``), unknown arguments and wrong types in a node with a ``_target_`` by ``_checked`` (against the
target's dataclass or signature).
"""

import dataclasses
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.judges.automatic import Automatic
from experiments.runs.responses import NoModel
from experiments.types import AnsweredElsewhere, Benchmark, Judge
from interp.batching import BatchRule
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from mitigation.wrappers import Shifted, ShiftedTrainable

if TYPE_CHECKING:
    from experiments.api.config import ApiConfig
    from mitigation.method import Method

# What may differ between two launches of one run, so that the second continues the first.
NOT_IN_HASH = ("force", "fresh", "output_root", "task", "plan", "image_workers", "feature_cache_mib", "verbose")
SKIP = "skip_bad"  # of a benchmark's node
OWN = "file"  # the option of a method in a file of the user's
NOWHERE = "nowhere"  # the folder of a benchmark that is only planned for
ATTRIBUTIONS = ("none", "captum")
PROTOCOLS = ("generate", "score")  # experiments/evaluation/answer.py


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plain values of a run; ``conf/config.yaml`` says what each is for."""

    name: str = MISSING
    note: str = ""
    seed: int = 0
    limit: int | None = None
    batch_size: int = 32
    batch_tokens: int | None = 16384
    image_workers: int = 2
    feature_cache_mib: int = 2048
    protocol: str = "generate"
    max_new_tokens: int = 16
    draws: int = 10_000
    unsafe_margin: float = 0.02
    strict: bool = False
    force: bool = False
    fresh: bool = False
    verbose: bool = False
    output_root: str = "outputs"
    attention: bool = False
    attribution: str = "none"
    attention_cases: int = 48
    case: str | None = None
    image: str | None = None
    text: str | None = None
    mmsafeaware: str | None = None
    mossbench: str | None = None
    run: str | None = None
    runs: list[str] | None = None
    labels: Any = None  # a path or several; a list in the Run
    count_empty_as_refusal: bool = False
    judge_card: str | None = None


@dataclass(frozen=True, kw_only=True)
class Schema(Settings):
    """The keys of a configuration's top level, for Hydra; nodes are checked against their targets."""

    task: Any = MISSING
    plan: Any = None
    model: Any = MISSING
    benchmark: Any = MISSING
    judge: Any = MISSING
    method: Any = MISSING
    attention_analysis: Any = MISSING
    arms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """One run, fully typed: what to evaluate, on what, and how.

    ``arm`` names the method under study among ``arms``; ``model`` is a ``NoModel`` where no arm calls one;
    ``plan`` is called instead of ``task`` where the command is to be planned alone (``task=plan``);
    ``attention_analysis`` gives an answered study's analyses of attention (None without ``attention=true``);
    ``config`` is the composed configuration; ``skip_bad`` whether cases that fail their checks are left out.
    """

    task: "Callable[[Run], object]"
    plan: "Callable[[Run], object] | None" = None
    model: "ModelConfig | ApiConfig | NoModel"
    benchmark: Benchmark
    judge: Judge
    arm: str
    arms: "dict[str, Method]"
    attention_analysis: Callable[[Any], list[Any]] | None
    config: dict[str, Any]
    skip_bad: bool = False

    @property
    def endpoint(self) -> "ApiConfig | None":
        """The model's configuration if it is only reached over an API, else None."""
        return None if isinstance(self.model, (ModelConfig, NoModel)) else self.model

    @property
    def weights(self) -> ModelConfig:
        """The model's configuration, for tasks that load its weights.

        Raises:
            UserError: the model is only reached over an API, or there is none.
        """
        if isinstance(self.model, NoModel):
            raise UserError(
                f"the responses of {self.model.name} were made elsewhere and no model is loaded; this task looks "
                "inside a model; leave method=responses out"
            )
        if not isinstance(self.model, ModelConfig):
            raise UserError(
                f"model {self.model.name} is only reached over an API; this task looks inside a model; "
                "choose one whose weights can be loaded, as model=llava_organism"
            )
        return self.model

    @property
    def batch_rule(self) -> BatchRule:
        """How every loop of this run puts prompts into batches."""
        return BatchRule(self.batch_size, self.batch_tokens)

    @property
    def judge_named(self) -> bool:
        """Whether the judge was chosen explicitly, not left to the benchmark."""
        return not str(self.config["judge"]["_target_"]).endswith(".Automatic")

    @property
    def config_hash(self) -> str:
        """Equal for two launches with the same answers, so that the second continues the first.

        ``_target_`` paths are hashed too: after a module was renamed, an unfinished run is not continued.
        """
        hashed = {key: value for key, value in self.config.items() if key not in NOT_IN_HASH}
        hashed["benchmark"] = _without_skipping(self.config["benchmark"])
        if isinstance(model := hashed.get("model"), dict):
            hashed["model"] = {key: value for key, value in model.items() if key != "force"}
        return digest(hashed)


def digest(value: object) -> str:
    """A short hash of any JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
    tree["model"] = _named_by_what_is_loaded(tree["model"])
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    arm = _arm(str(choices.get("method", "method")), tree)
    baseline = tree["arms"].get("baseline", {"_target_": "mitigation.method.Baseline"})
    nodes = {"baseline": baseline, arm: baseline if arm == "baseline" else tree["method"]}
    nodes |= {name: node for name, node in tree["arms"].items() if name not in nodes}
    arms = {name: _built(node, f"arms.{name}") for name, node in nodes.items()}
    others = {name: method for name, method in arms.items() if name != "baseline"}
    if others and answered_elsewhere(others) and "baseline" not in tree["arms"]:
        arms, nodes = others, {name: nodes[name] for name in others}  # no model's baseline beside answers of others
    alone = answered_elsewhere(arms)
    tree["model"] = None if alone else tree["model"]
    built = {
        "model": NoModel(arms[arm].name) if alone else _built(tree["model"], "model"),
        "benchmark": (benchmark := _built(_without_skipping(tree["benchmark"]), "benchmark")),
        "judge": _judge(tree["judge"], benchmark),
        "arms": arms,
        "attention_analysis": _built(tree["attention_analysis"], "attention_analysis") if tree["attention"] else None,
        "plan": None if tree.get("plan") is None else _built(tree["plan"], "task"),
        "task": _built(tree["task"], "task"),  # last: a task's module is slow to import
    }
    settings = {field.name: tree[field.name] for field in dataclasses.fields(Settings)}
    settings["labels"] = _sheets(tree["labels"])
    skip_bad = _skips(tree["benchmark"])
    return Run(**settings, **built, arm=arm, config=tree | {"arms": nodes}, skip_bad=skip_bad)


def _without_skipping(node: Any) -> Any:
    """A benchmark's node, and what it is made of, without ``skip_bad``, which the framework and no benchmark reads.

    It is not in the hash either: a run that stopped at a bad case goes on without it, and asks nothing again.
    """
    if not isinstance(node, dict):
        return node
    return {key: _without_skipping(value) for key, value in node.items() if key != SKIP}


def _skips(node: Any) -> bool:
    """Whether cases that fail their checks are left out.

    Raises:
        UserError: the value is neither true nor false.
    """
    value = node.get(SKIP, False) if isinstance(node, dict) else False
    if not isinstance(value, bool):
        raise UserError(f"benchmark.{SKIP}={value!r}: must be true or false")
    return value


def _sheets(given: Any) -> list[str] | None:
    """The paths of people's sheets: one is given as a path, several as ``[a.csv,b.csv]``.

    Raises:
        UserError: they are neither.
    """
    names = [given] if isinstance(given, str) else given
    if names is not None and not (isinstance(names, list) and names and all(isinstance(one, str) for one in names)):
        raise UserError(f"labels={given!r}: must be a CSV, or several as [anna.csv,ben.csv]")
    return names


def _arm(option: str, tree: Mapping[str, Any]) -> str:
    """The name of the arm under study: that of its option, or of a user's own file without ``.py``.

    Raises:
        UserError: the file is called as another arm.
    """
    path = tree["method"].get("path") if option == OWN and isinstance(tree["method"], dict) else None
    name = Path(str(path)).stem if path else option
    if path and (name == "baseline" or name in tree["arms"]):
        raise UserError(f"method.path={path}: there is an arm {name} already; give the file another name")
    return name


def answered_elsewhere(arms: Mapping[str, Any]) -> bool:
    """Whether no arm calls a model."""
    return all(isinstance(method, AnsweredElsewhere) for method in arms.values())


def _named_by_what_is_loaded(node: Any) -> Any:
    """The model's node; where its path was overridden and its name was not, the path's last part is its name.

    Overridden means: on the command line, or to another value than that of the chosen option in ``conf/model``. Of a
    model behind an API the id there stands for the path.
    """
    if not (isinstance(node, dict) and HydraConfig.initialized()):
        return node
    hydra = HydraConfig.get()
    place = "model" if "base_url" in node else "path"
    given = {override.partition("=")[0].lstrip("+") for override in hydra.overrides.task}
    option = _option("model", hydra.runtime.choices.get("model"), hydra.runtime.config_sources)
    renamed = "model.name" in given or _differs(node, option, "name")
    inherited = place in option and "name" not in option  # an option made from another, which has another path
    moved = f"model.{place}" in given or _differs(node, option, place) or inherited
    return node | {"name": _last_part(str(node[place]))} if moved and not renamed and node.get(place) else node


def _option(group: str, name: Any, sources: Any) -> Mapping[str, Any]:
    """The option's own file, not composed, from the first place that Hydra finds it in; empty where there is none."""
    for source in sources:
        if source.schema in ("pkg", "file"):
            file = (files(source.path) if source.schema == "pkg" else Path(source.path)) / group / f"{name}.yaml"
            if file.is_file():
                found = OmegaConf.to_container(OmegaConf.create(file.read_text(encoding="utf-8")))
                return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    return {}


def _differs(node: Mapping[str, Any], option: Mapping[str, Any], key: str) -> bool:
    """Whether the option has another value of ``key`` written out than the node."""
    value = option.get(key)
    return value is not None and "${" not in str(value) and value != "???" and node.get(key) != value


def _last_part(path: str) -> str:
    """The last part of a path or hub id; of "." and the like that of the folder meant."""
    last = path.rstrip("/").rpartition("/")[2]
    return Path(path).resolve().name or path if last in ("", ".", "..") else last


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
    """The configured judge, or the default for the benchmark's kind. Raises as ``_built`` does."""
    judge = _built(node, "judge")
    return judge.for_kind(benchmark.kind) if isinstance(judge, Automatic) else judge


def _built(node: Any, key: str) -> Any:
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
    known = list(inspect.signature(target).parameters)
    for name in given:
        if name not in known:
            raise UserError(f"{key}.{name}: {special['_target_']} has no such argument; known: {', '.join(known)}")
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
            OmegaConf.update(schema, name, value)
        except OmegaConfBaseException as error:
            raise UserError(f"{key}.{name}={value!r}: {str(error).splitlines()[0]}") from error
    merged = OmegaConf.to_container(schema)
    assert isinstance(merged, dict)
    return {name: merged.get(name, value) if not isinstance(value, dict) else value for name, value in given.items()}
