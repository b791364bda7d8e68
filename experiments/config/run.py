"""A run, fully typed, and the plain values that a configuration has at its top level."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.runs.responses import NoModel, Responses
from experiments.types import Benchmark, Judge
from interp.batching import BatchRule
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.api.config import ApiConfig
    from mitigation.method import Method

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
