"""The arms of the page: methods that need no learning, arms of the command line, and arms of a run.

A run's folder may be a stranger's: of its configuration only the shipped classes below are made, with plain values.
Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from experiments.serving.exploring.experiment import Arm
from interp.errors import UserError
from mitigation.attention_steering import AttentionSteering
from mitigation.controls import TextOnly
from mitigation.learned.activation_steering import DirectionSteering
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import Baseline, TrainableMethod, abilities
from mitigation.prior_correction import PriorCorrection
from mitigation.prompting import ContextPrompt, SafetyPrompt
from mitigation.vcd import VCD
from mitigation.verbalise import RESOLVES, Verbalise
from mitigation.wrappers import Shifted, ShiftedTrainable

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
LEARNED = (TruthReadout, DirectionSteering)
SHIPPED = {f"{kind.__module__}.{kind.__name__}": kind for kind in (*(type(one) for one in ALWAYS.values()), *LEARNED)}
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
WORDS = ("text", "question")
FLAGS = ("picture", "reword", "relative", "all_text")


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


def arms_of(
    given: Mapping[str, Any], run: Path | None, saved: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the methods by name, and why other arms of the run cannot answer here.

    An arm of the run answers as it did there. An arm of the command line with its name and other settings is offered
    next to it.

    Args:
        given: the arms of the command line.
        run: the folder of the run.
        saved: the configuration of the run's arms.
    """
    offers = {name: method for name, method in {**ALWAYS, **given}.items() if not _learns(method)}
    refused = {
        name: "it learns before it answers; give the run it has learned in: run=<dir>"
        for name in given
        if name not in offers
    }
    for name, node in saved.items():
        try:
            method = _of_run(node, name, run)
        except (UserError, TypeError, ValueError, AttributeError) as error:
            if name not in offers:
                refused[name] = str(error)
            continue
        if name in given and name in offers and offers[name] != method:
            offers[f"{name} of the command line"] = offers[name]
        offers[name] = method
        refused.pop(name, None)
    return offers, refused


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


def _of_run(node: Any, name: str, run: Path | None) -> Any:
    """Return a run's arm of a shipped class. What it learned is read from safetensors."""
    from experiments.serving.methods import read_learned  # slow to import: the page is there first

    kind = SHIPPED.get(str(node.get("_target_"))) if isinstance(node, dict) else None
    if kind is None:
        raise UserError("a run's folder may not name its class; give it on the command line")
    plain = {key: value for key, value in node.items() if key != "_target_"}
    if any(isinstance(value, dict) for value in plain.values()):
        raise UserError("it has a method inside; give it on the command line")
    shift = float(plain.pop("shift", 0) or 0)
    method = kind(**plain)
    if not isinstance(method, TrainableMethod):
        return Shifted(method, shift) if shift else method
    return read_learned(Path(run or ""), name, ShiftedTrainable(method, shift) if shift else method)
