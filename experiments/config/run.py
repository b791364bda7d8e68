"""A run, fully typed, its plain values at the top level, and the options of every group.

An option is a file ``conf/<group>/<name>.yaml``, or an entry of a list such as ``conf/methods.yaml``. It says only what
differs from the defaults of the class that it names. The defaults are read from the source without importing it, so
that each is written once. Many of the modules import torch, which a command that only lists or checks options cannot
wait for.
"""

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

import conf
from experiments.runs.responses import NoModel, Responses
from experiments.types import Benchmark, Judge
from interp.batching import BatchRule
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.api.config import ApiConfig
    from mitigation.method import Method


ROOT = Path(conf.__file__).parents[1]
REQUIRED = "???"  # Hydra's mark for a value that the user must give
# What may differ between two launches of one run, so that the second continues the first.
NOT_IN_HASH = ["force", "fresh", "output_root", "task", "plan", "verbose", "contrasts"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plain values of a run; ``conf/config.yaml`` says what each is for."""

    name: str
    note: str = ""
    seed: int = 0
    limit: int | None = None
    batch_size: int = 32
    batch_tokens: int | None = 16384
    protocol: str = "generate"
    draws: int = 10000
    unsafe_margin: float = 0.02
    operating_point: float | None = None
    strict: bool = False
    force: bool = False
    fresh: bool = False
    verbose: bool = False
    output_root: str = "outputs"
    attention: bool = False
    attention_cases: int = 48
    judge_card: str | None = None
    count_empty_as_refusal: bool = False
    contrasts: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Schema(Settings):
    """The keys of a configuration's top level, for Hydra; nodes are checked against their targets."""

    max_new_tokens: int | None = None
    task: Any
    plan: Any = None  # only of ``task=plan``
    model: Any
    benchmark: Any
    judge: Any
    method: Any
    attention_analysis: Any
    arms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """One run, fully typed: what to evaluate, on what, and how.

    Attributes:
        model: a ``NoModel`` if no arm calls one.
        arm: the name of the method under study, among ``arms``.
        attention_analysis: returns the analyses of an answered study's attention; None without ``attention=true``.
        config: the composed configuration.
        skip_bad: whether to skip cases that fail their checks.
    """

    max_new_tokens: int
    task: "Callable[[Run], object]"
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
        if not isinstance(self.model, ModelConfig):
            reason = (
                "gave its responses elsewhere" if isinstance(self.model, NoModel) else "is only reached over an API"
            )
            way_out = "this task looks inside a model; choose one whose weights can be loaded"
            raise UserError(f"model {self.model.name} {reason}; {way_out}")
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
        if isinstance(model := hashed.get("model"), dict):
            hashed["model"] = {key: value for key, value in model.items() if key != "force"}
        return digest(hashed)


def digest(value: object) -> str:
    """Return a short hash of any JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def answered_elsewhere(arms: Mapping[str, Any]) -> bool:
    """Return whether no arm calls a model."""
    return all(isinstance(method, Responses) for method in arms.values())


@cache
def defaults_of(target: str) -> dict[str, Any]:
    """Return option → default of a dataclass or function of this project.

    An option without a default has the value ``REQUIRED``. An option is left out if YAML cannot hold its default.

    Args:
        target: dotted path, such as ``mitigation.vcd.VCD``. A path outside this project has no options here.
    """
    definition, module = _definition(*target.rpartition(".")[::2])
    values: dict[str, Any] = {}
    for base in reversed(getattr(definition, "bases", [])):
        values |= defaults_of(f"{module}.{ast.unparse(base)}")
    for name, default in _options(definition):
        with suppress(ValueError):
            values[name] = REQUIRED if default is None else _value(default, module)
    return values


def _definition(module: str, name: str) -> tuple[ast.AST | None, str]:
    """Return the definition of a name at the top level of a module, and the module that has it."""
    node = _names(module).get(name)
    if isinstance(node, ast.ImportFrom) and node.module:
        return _definition(node.module, name)
    return node, module


@cache
def _names(module: str) -> dict[str, ast.AST]:
    """Return name → definition, import or value of each name at the top level of a module."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_bytes()).body if path.is_file() else []
    names: dict[str, ast.AST] = {
        alias.name: node for node in body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names |= {node.name: node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return names | {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}


def _options(definition: ast.AST | None) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield name and default of each argument, or of each field of a dataclass; None if there is no default."""
    if isinstance(definition, ast.FunctionDef):
        arguments = definition.args
        names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        values = [*arguments.defaults, *arguments.kw_defaults]
        yield from zip(names, [None] * (len(names) - len(values)) + values, strict=True)
    elif isinstance(definition, ast.ClassDef) and definition.decorator_list:
        for field in definition.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                yield ast.unparse(field.target), field.value


def _value(node: ast.AST, module: str) -> Any:
    """Return the value of an expression.

    Raises:
        ValueError: YAML cannot hold it. The class sets it itself.
    """
    match node:
        case ast.Call(keywords=[ast.keyword(arg="default" | "default_factory", value=value), *_]):  # field(…)
            return _value(value, module)
        case ast.Lambda(body=body):
            return _value(body, module)
        case ast.Name(id="dict" | "list"):
            return {} if node.id == "dict" else []
        case ast.Name(id=name):
            definition, module = _definition(module, name)
            return _value(definition or ast.Pass(), module)
        case ast.List():
            return [_value(element, module) for element in node.elts]
        case ast.expr() if not isinstance(value := ast.literal_eval(node), tuple):
            return value
    raise ValueError(f"{node} is no value")


CONF = Path(conf.__file__).parent
Node = dict[str, Any]


@cache
def written() -> dict[str, Node]:
    """Return option → what its file or entry says, such as ``method/vcd`` → its node."""
    options: dict[str, Node] = {}
    for path in CONF.rglob("*.yaml"):
        name = path.relative_to(CONF).with_suffix("").as_posix()
        node = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        is_list = path.parent == CONF and name != "config"  # models.yaml is a list of options of the group model
        options |= {f"{name[:-1]}/{entry}": node[entry] for entry in node} if is_list else {name: node}
    return options


def options_of(group: str) -> list[str]:
    """Return the names that ``group=NAME`` accepts."""
    return sorted(option.rpartition("/")[2] for option in written() if option.rpartition("/")[0] == group)


def source_lines(option: str) -> list[str]:
    """Return the lines of an option's file, with its comments."""
    return (CONF / f"{option}.yaml").read_text(encoding="utf-8").splitlines()


def with_defaults(node: Any) -> Any:
    """Return the node with every option of its ``_target_``; nodes inside it likewise.

    Left out are values that the node's defaults list composes, and the arguments of a function that is called later.
    """
    if not isinstance(node, dict):
        return node
    entries = [key for entry in node.get("defaults", []) for key in ([entry] if isinstance(entry, str) else entry)]
    composed = {re.split("[@/]", key)[-1].partition(".")[0] for key in entries}
    defaults = defaults_of(node["_target_"]) if "_target_" in node and "_partial_" not in node else {}
    options = {name: value for name, value in defaults.items() if name not in composed}
    return options | {name: with_defaults(value) for name, value in node.items()}


@cache
def register() -> None:
    """Register every option with Hydra, once, and ``Schema`` as ``run_schema``."""
    store = ConfigStore.instance()
    schema = OmegaConf.structured(Schema)
    OmegaConf.set_readonly(schema, None)  # a frozen dataclass would make the whole configuration read-only
    store.store(name="run_schema", node=schema)
    for option, node in written().items():
        group, _, name = option.rpartition("/")
        package = "_global_" if group == "exp" else None
        store.store(group=group or None, name=name, node=with_defaults(node), package=package)
