"""The cases and arms of the page: of the benchmark, methods that need no learning, and arms of the command line.

Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

from rich.console import Console

from experiments.config import Run
from experiments.serving.exploring.experiment import Arm
from experiments.types import Sample
from interp.errors import UserError
from mitigation.attention_steering import AttentionSteering
from mitigation.controls import TextOnly
from mitigation.method import Baseline, TrainableMethod, abilities
from mitigation.prior_correction import PriorCorrection
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.vcd import VCD
from mitigation.verbalise import RESOLVES, Verbalise

ALWAYS: Mapping[str, Any] = {
    "baseline": Baseline(),
    "vcd": VCD(),
    "prior_correction": PriorCorrection(),
    "verbalise": Verbalise(),
    "attention_steering": AttentionSteering(),
    "prompt": ContextPrompt(),
    "safety_prompt": SafetyPrompt(),
    "text_only": TextOnly(),
}
# By field: the lowest and highest value of its slider and the step, or the choices.
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "alpha": (0, 5, 0.1),
    "beta": (0.01, 1, 0.01),
    "noise_step": (0, 999, 1),
    "weight": (-5, 5, 0.1),
    "pictures": (1, 8, 1),
    "seed": (0, 20, 1),
    "strength": (-8, 8, 0.1),
    "description_tokens": (1, 128, 1),
    "noise": ("diffusion", "blur", "black", "swapped"),
    "prior": ("blank", "none", "noise", "neutral", "swapped"),
    "resolve": RESOLVES,
}
EXAMPLE = "test-plain-073-crush-safe"  # of IconWorld: the cockroach of the README
WORDS = ("text", "question")
FLAGS = ("picture", "reword", "relative", "all_text")


@dataclass
class Cases:
    """The benchmark's cases, loaded when the first is asked for: the page is there first."""

    run: Run

    @cached_property
    def _by_id(self) -> dict[str, Sample]:
        from experiments.evaluation.cases import load_cases

        try:
            loaded = load_cases(self.run, Console(quiet=True))
        except UserError:
            return {}
        return {sample.id: sample for sample in loaded.samples if not sample.turns}  # the page shows one picture

    def sample(self, case: str) -> Sample:
        """Return a case of the benchmark.

        Raises:
            UserError: there is none of this id, or the benchmark cannot be loaded.
        """
        if case not in self._by_id:
            raise UserError(f"benchmark {self.run.benchmark.name} has no case {case[:80]!r} here; choose another")
        return self._by_id[case]

    def first(self, case: str | None = None) -> str:
        """Return the id of the case that the page opens on: ``case``, the example, or the first; "" for none.

        Raises:
            UserError: there is no such case.
        """
        if case is not None:
            return self.sample(case).id
        pictured = [sample.id for sample in self._by_id.values() if sample.image is not None]
        return EXAMPLE if EXAMPLE in pictured else next(iter(pictured), "")


def settings_of(method: Any) -> list[dict[str, Any]]:
    """Return what the page shows of a method's settings: name, kind (range, choice, flag, words), value and bounds."""
    listed: list[dict[str, Any]] = []
    for each in fields(method) if is_dataclass(method) else ():
        value, bounds = getattr(method, each.name), SETTINGS.get(each.name, ())
        setting = {"name": each.name, "value": value}
        if isinstance(value, bool) and each.name in FLAGS:
            listed.append(setting | {"kind": "flag"})
        elif isinstance(value, str) and each.name in WORDS:
            listed.append(setting | {"kind": "words"})
        elif value in bounds and isinstance(value, str):
            listed.append(setting | {"kind": "choice", "choices": list(bounds)})
        elif bounds and isinstance(value, int | float):
            listed.append(setting | {"kind": "range", **dict(zip(("low", "high", "step"), bounds, strict=True))})
    return listed


def arms_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the methods by name, and why other arms that were ``given`` cannot answer here."""
    offers = {name: method for name, method in {**ALWAYS, **given}.items() if not _learns(method)}
    why = "it learns before it answers; ask it by task=serve run=<dir>, of a run in which it has learned"
    return offers, {name: why for name in given if name not in offers}


def chosen(arms: Mapping[str, Any], arm: Arm) -> Any:
    """Return the method that an experiment's arm names, with its settings.

    Raises:
        UserError: there is none of this name, it has no such setting, or it refuses the value.
    """
    if arm.name not in arms:
        raise UserError(f"no arm {arm.name[:60]!r} here; there are {', '.join(arms)}; choose one")
    method = arms[arm.name]
    names = {setting["name"] for setting in settings_of(method)}
    if unknown := [name for name in arm.settings if name not in names]:
        raise UserError(f"no setting {unknown[0]!r} of this arm; it has {', '.join(sorted(names)) or 'none'}")
    try:
        return replace(method, **arm.settings)
    except TypeError as error:
        raise UserError(f"a setting of a wrong type ({error})") from None


def _learns(method: Any) -> bool:
    return isinstance(method, TrainableMethod) or bool(abilities(method).fitted_to) or not hasattr(method, "generate")
