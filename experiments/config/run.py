"""A run, fully typed, and the plain values that a configuration has at its top level."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
NOT_IN_HASH = (
    "force", "fresh", "output_root", "task", "plan", "image_workers", "feature_cache_mib", "verbose",
    "contrasts", "skip_trained",
)  # fmt: skip
SKIP = "skip_bad"  # of a benchmark's node


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plain values of a run; ``conf/config.yaml`` says what each is for, and has their defaults."""

    name: str
    note: str
    seed: int
    limit: int | None
    batch_size: int
    batch_tokens: int | None
    image_workers: int
    feature_cache_mib: int
    protocol: str
    max_new_tokens: int
    draws: int
    unsafe_margin: float
    operating_point: float | None
    only_method: str | None
    contrasts: list[list[str]]
    strict: bool
    skip_trained: bool
    force: bool
    fresh: bool
    verbose: bool
    output_root: str
    attention: bool
    attention_cases: int
    count_empty_as_refusal: bool
    judge_card: str | None


@dataclass(frozen=True, kw_only=True)
class Schema(Settings):
    """The keys of a configuration's top level, for Hydra; nodes are checked against their targets."""

    task: Any
    plan: Any = None  # of ``task=plan`` alone
    model: Any
    benchmark: Any
    judge: Any
    method: Any
    attention_analysis: Any
    arms: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """One run, fully typed: what to evaluate, on what, and how.

    ``arm`` names the method under study among ``arms``. ``model`` is a ``NoModel`` if no arm calls one.
    ``attention_analysis`` gives the analyses of attention of an answered study; it is None without ``attention=true``.
    ``config`` is the composed configuration. ``skip_bad`` says whether to skip cases that fail their checks.
    """

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
        hashed["benchmark"] = without_skipping(self.config["benchmark"])
        if isinstance(model := hashed.get("model"), dict):
            unset = [
                key for key in ("template", "thinking", "answer_tokens") if not model.get(key)
            ]  # as runs were hashed before these
            hashed["model"] = {key: value for key, value in model.items() if key not in ("force", *unset)}
        return digest(hashed)


def digest(value: object) -> str:
    """A short hash of any JSON value, independent of the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def answered_elsewhere(arms: Mapping[str, Any]) -> bool:
    """Whether no arm calls a model."""
    return all(isinstance(method, Responses) for method in arms.values())


def without_skipping(node: Any) -> Any:
    """A benchmark's node, and what it is made of, without ``skip_bad``, which the framework and no benchmark reads.

    It is not in the hash either: a run that stopped at a bad case goes on without it, and asks nothing again.
    """
    if not isinstance(node, dict):
        return node
    return {key: without_skipping(value) for key, value in node.items() if key != SKIP}
