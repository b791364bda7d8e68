"""The arms of the page: ways of answering that need no learning, those of the command line, and those of a run.

A run's folder may be a stranger's: of its configuration only the shipped classes below are made, with plain values.
Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
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
# By field: lowest and highest of its slider, and its step.
SLIDERS: Mapping[str, tuple[float, float, float]] = {
    "alpha": (0, 5, 0.1),
    "beta": (0.01, 1, 0.01),
    "noise_step": (0, 999, 1),
    "weight": (-5, 5, 0.1),
    "pictures": (1, 8, 1),
    "seed": (0, 20, 1),
    "strength": (-8, 8, 0.1),
    "description_tokens": (1, 128, 1),
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "noise": ("diffusion", "blur", "black", "swapped"),
    "prior": ("blank", "none", "noise", "neutral", "swapped"),
    "resolve": RESOLVES,
}
WORDS = ("text", "question")
FLAGS = ("picture", "reword", "relative", "all_text")


@dataclass(frozen=True)
class Offered:
    """An arm that the page offers. ``made`` is the Python that makes its method without settings of the page."""

    method: Any
    made: str
    imports: tuple[str, ...] = ()

    def with_settings(self, settings: Mapping[str, Any]) -> Any:
        """The method with some settings replaced.

        Raises:
            UserError: it has no such setting, or refuses the value.
        """
        known = {setting["name"] for setting in settings_of(self.method)}
        if unknown := [name for name in settings if name not in known]:
            raise UserError(f"no setting {unknown[0]!r} of this arm; it has {', '.join(sorted(known)) or 'none'}")
        try:
            return replace(self.method, **settings)
        except TypeError as error:
            raise UserError(f"a setting of a wrong type ({error})") from None

    def code(self, settings: Mapping[str, Any]) -> str:
        """The Python that makes the method with these settings."""
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        if not given:
            return self.made
        return f"{self.made[:-1]}{given})" if self.made.endswith("()") else f"replace({self.made}, {given})"


def offered(method: Any) -> Offered:
    """A method as its class and plain values write it."""
    kind = type(method)
    if not is_dataclass(method):
        return Offered(method, f"{kind.__name__}()", (f"from {kind.__module__} import {kind.__name__}",))
    values = {each.name: (getattr(method, each.name), each.default) for each in fields(method) if each.init}
    imports = [f"from {kind.__module__} import {kind.__name__}"]
    written = []
    for name, (value, default) in values.items():
        if value == default:
            continue
        if is_dataclass(value) and not isinstance(value, type):
            inner = offered(value)
            imports += inner.imports
            written.append(f"{name}={inner.made}")
        else:
            written.append(f"{name}={value!r}")
    return Offered(method, f"{kind.__name__}({', '.join(written)})", tuple(imports))


def settings_of(method: Any) -> list[dict[str, Any]]:
    """What the page shows of a method's settings: name, kind (range, choice, flag, words), value and bounds."""
    listed: list[dict[str, Any]] = []
    for each in fields(method) if is_dataclass(method) else ():
        value = getattr(method, each.name)
        if each.name in SLIDERS and isinstance(value, int | float) and not isinstance(value, bool):
            low, high, step = SLIDERS[each.name]
            listed.append({"name": each.name, "kind": "range", "value": value, "low": low, "high": high, "step": step})
        elif each.name in CHOICES and value in CHOICES[each.name]:
            listed.append({"name": each.name, "kind": "choice", "value": value, "choices": list(CHOICES[each.name])})
        elif each.name in FLAGS and isinstance(value, bool):
            listed.append({"name": each.name, "kind": "flag", "value": value})
        elif each.name in WORDS and isinstance(value, str):
            listed.append({"name": each.name, "kind": "words", "value": value})
    return listed


def arms_of(own: Mapping[str, Any], run: Path | None, saved: Mapping[str, Any]) -> tuple[dict[str, Offered], dict]:
    """The arms by name, and why others of the run cannot answer here.

    ``own`` are those of the command line; ``saved`` are the nodes of the run's arms, ``run`` its folder. An arm of the
    run answers as it did there; one of the command line with its name and other settings is offered beside it.
    """
    offers = {name: offered(method) for name, method in {**ALWAYS, **own}.items() if not _learns(method)}
    refused = {
        name: "it learns before it answers; give the run it has learned in: run=<dir>"
        for name in own
        if name not in offers
    }
    for name, node in saved.items():
        try:
            of_run = _of_run(node, name, run)
        except (UserError, TypeError, ValueError, AttributeError) as error:
            if name not in offers:
                refused[name] = str(error)
            continue
        if name in own and name in offers and offers[name].method != of_run.method:
            offers[f"{name} of the command line"] = offers[name]
        offers[name] = of_run
        refused.pop(name, None)
    return offers, refused


def chosen(arms: Mapping[str, Offered], arm: Arm) -> Any:
    """The method that an experiment's arm names.

    Raises:
        UserError: there is none of this name, or it refuses a setting.
    """
    if arm.name not in arms:
        raise UserError(f"no arm {arm.name[:60]!r} here; there are {', '.join(arms)}; choose one")
    return arms[arm.name].with_settings(arm.settings)


def _learns(method: Any) -> bool:
    return isinstance(method, TrainableMethod) or bool(abilities(method).fitted_to) or not hasattr(method, "generate")


def _of_run(node: Any, name: str, run: Path | None) -> Offered:
    """The arm of a run's own configuration, of a shipped class; what it has learned is read from safetensors."""
    from experiments.evaluation.learning import FOLDER  # slow to import: the page is there first

    kind = SHIPPED.get(str(node.get("_target_"))) if isinstance(node, dict) else None
    if kind is None:
        raise UserError("its class is none that a run's folder may name; give it on the command line")
    plain = {key: value for key, value in node.items() if key != "_target_"}
    if any(isinstance(value, dict) for value in plain.values()):
        raise UserError("it has a method inside; give it on the command line")
    shift = float(plain.pop("shift", 0) or 0)
    method = kind(**plain)
    if not isinstance(method, TrainableMethod):
        return offered(Shifted(method, shift) if shift else method)
    method = ShiftedTrainable(method, shift) if shift else method
    file = None if run is None else run / FOLDER / f"{name}.safetensors"
    if file is None or not file.is_file() or Path(name).name != name:
        raise UserError("this run has no single file of what it learned")
    how = offered(method)
    return Offered(
        method.read(file), f"{how.made}.read(Path({str(file)!r}))", (*how.imports, "from pathlib import Path")
    )
