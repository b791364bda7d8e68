"""The interfaces of mitigations: values that answer prompts with a model that is passed in.

``TrainableMethod`` needs labelled cases first. ``Abilities`` is what a method declares about itself.

The ``check_…`` functions check settings and prompts before any weights load, and raise ``UserError``. Imports no torch,
so that mistakes in a configuration are reported at once.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from interp.errors import UserError
from interp.tensor_file import NamedTensors, digest_of, read_tensors

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@runtime_checkable
class Method(Protocol):
    """One arm of a study: a frozen dataclass in a module that imports neither torch nor transformers."""

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return answers to ``prompts``, in order, with this arm's margins.

        An answer depends on its prompt (with its key) and the method's settings, not on the rest of the batch. The
        margins are read by ``vlm.generate`` at the verdict (``interp.generation``), behind a thought too.

        Raises:
            UserError: the method cannot work on this model or prompt.
        """
        ...


@dataclass(frozen=True)
class Work:
    """What a method computes for one case, at most, by which ``task=plan`` estimates its time and memory.

    It reads ``prompts``. Of these, ``branches`` go on to the end of the answer, each with a forward for every token of
    it. ``step_tokens`` are said before the answer.
    """

    prompts: int = 1
    branches: int = 1
    step_tokens: int = 0


INSIDE = "it reads or changes the model's own states or weights, which no API gives"
SCORES = "it changes the scores that each token is chosen from, and behind an API the server chooses"


@dataclass(frozen=True)
class Abilities:
    """What a study needs to know about a method before it runs it.

    A method overrides these defaults by class attributes or properties of the same names. One that works around another
    method names that in ``wraps``, and takes over from it what is ``INHERITED``, unless it declares that itself.
    """

    unscored: str = ""
    """Why the verdict cannot be read from the first token's margin; "" if it can."""
    unforced: str = ""
    """Why the beginning of its answer cannot be forced (``mitigation.forced``); "" if it can."""
    yes_no_only: bool = False
    """It works on the margin between Yes and No, which an open answer does not have."""
    follows_margin: bool = False
    """It learns from the model's margin. Of answers in words this is the refusal margin (``VLM.metric``), and without
    one it cannot learn."""
    works_over_api: bool = False
    """It only calls ``generate(prompts, max_new_tokens=...)`` of the model, so it works over an API."""
    needs: str = INSIDE
    """What it needs that a model behind an API does not give; "" if log-probabilities of listed tokens are enough."""
    needs_for_answers: str = ""
    """As ``needs``, of whole answers alone: its scores of the first token have what they need."""
    needs_description: bool = False
    """It is told what the picture shows by the benchmark itself (``Prompt.shows``), so it enters only where that is
    known."""
    drops_image: bool = False
    """It asks the model without a picture, which not every family can be."""
    sampled: bool = False
    """Its tokens are drawn, so that a verdict need not have the sign of its margin."""
    fitted_to: Literal["", "labels", "yes_share"] = ""
    """It must be fitted first, on the baseline's margins and either the labels (``fit(margins, safe)``, as
    ``CalibratedShift``) or the share of Yes of the arm under study (``fit(margins, target_yes_share)``, as
    ``YesBias``)."""
    learned_in: str = ""
    """The folder or file of what it learned from labelled cases, with their hashes (``interp.tensor_file``); "" for a
    method that learned nothing."""
    work: Work = Work()
    """What it computes for one case."""


INHERITED = (
    "unscored",
    "unforced",
    "yes_no_only",
    "follows_margin",
    "needs_description",
    "drops_image",
    "sampled",
    "work",
    "learned_in",
)
"""What a method around another takes over from it."""


def abilities(method: Any) -> Abilities:
    """Return what ``method`` declares, completed by the method that it ``wraps`` and with the defaults."""
    inner = getattr(method, "wraps", None)
    inherited = {} if inner is None else {name: getattr(abilities(inner), name) for name in INHERITED}
    declared: dict[str, Any] = {
        each.name: getattr(method, each.name, inherited.get(each.name, each.default)) for each in fields(Abilities)
    }
    return Abilities(**declared)


class Around:
    """A base of methods around the one in their field ``method``."""

    method: Any

    @property
    def wraps(self) -> Any:
        """See ``Abilities``."""
        return self.method


OWES = (
    "a method owes, for each call of generate, one Generation with a text, token ids, a margin and finished for every "
    "prompt, in the order of the prompts"
)


class MethodFault(UserError):
    """A method raised what it should not, or did not return what it owes."""


def check_answers(method: Any, generation: Any, prompts: "Sequence[Prompt]", *, margins: bool) -> None:
    """Check what ``method`` returned for ``prompts``. ``margins``: whether the model gives any.

    Raises:
        MethodFault: no Generation, another number of answers, another order, or margins that are missing though the
            method declares no reason (``Abilities.unscored``).
    """
    from interp.generation import Generation

    if not isinstance(generation, Generation):
        raise MethodFault(f"it returned {type(generation).__name__}; {OWES}")
    for name in ("texts", "token_ids", "margins", "finished"):
        rows = getattr(generation, name)
        if rows is None or not hasattr(rows, "__len__") or len(rows) != len(prompts):
            count = len(rows) if hasattr(rows, "__len__") else "no"
            raise MethodFault(f"it returned {count} {name.replace('_', ' ')} for {len(prompts)} prompts; {OWES}")
    keys = [prompt.key for prompt in prompts]
    if generation.keys is not None and generation.keys != keys and sorted(generation.keys) == sorted(keys):
        raise MethodFault(f"it returned the answers in another order (keys {generation.keys[:3]} …); {OWES}")
    expected = margins and not abilities(method).unscored and bool(generation.scored.any())
    if expected and bool(generation.margins.isnan().all()):
        raise MethodFault(
            f"it returned no margins; {OWES}; if it masks the answers, keep their scores as uncut_scores "
            "(interp.generation); if it has none, say why in an attribute unscored"
        )


@dataclass(frozen=True)
class Baseline:
    """The unmodified model, decoded greedily."""

    works_over_api: ClassVar[bool] = True

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``VLM.generate``."""
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@runtime_checkable
class TrainableMethod(Protocol):
    """A method before training: a frozen dataclass of settings that imports neither torch nor transformers.

    It may have ``check_cases(questions, safe)`` too, called before any weights load, which raises a ``UserError`` where
    such cases cannot teach it.
    """

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "Method":
        """Train on ``prompts``; ``safe`` is True where Yes is correct. Return the trained method.

        Writes a safetensors file to ``out``. The method's ``repr`` contains a digest of the file's content, not its
        path, so that equal runs compare equal wherever they are. Do not evaluate the method on its training cases.

        Raises:
            UserError: the method cannot be trained on these cases, for example because a class is missing.
        """
        ...

    def read(self, out: Path) -> "Method":
        """Read the trained method that ``learn`` wrote to ``out``.

        Raises:
            UserError: the file belongs to another method.
        """
        ...


def check_cases(method: Any, questions: Sequence[str], safe: Sequence[bool]) -> None:
    """Check, before any weights load, whether cases can teach a ``TrainableMethod``, where it has a ``check_cases``.

    Raises:
        UserError: they cannot.
    """
    if (check := getattr(method, "check_cases", None)) is not None:
        check(questions, safe)


@dataclass(frozen=True)
class TrainedFile:
    """A trained method, stored in the file ``path``; ``digest`` identifies its content in ``repr``."""

    path: Path = field(repr=False, compare=False)
    digest: str
    KIND: ClassVar[str]  # of the file (``interp.tensor_file``)

    @classmethod
    def from_file(cls, path: Path, **settings: Any) -> Any:
        """Return the method that was written to ``path``.

        Raises:
            UserError: the file belongs to another method.
        """
        read_tensors(path, cls.KIND)
        return cls(path, digest_of(path), **settings)

    @property
    def learned_in(self) -> str:
        """See ``Abilities``."""
        return str(self.path)

    @cached_property
    def _vectors(self) -> NamedTensors:
        return read_tensors(self.path, self.KIND)

    @property
    def about(self) -> dict[str, Any]:
        """Return how it was trained: the cases, and the settings selected on them."""
        return self._vectors.about


NOISE_STEPS = 1000
NOISE_KINDS = ("diffusion", "diffusion8", "blur", "black", "swapped")
"""How the picture of the second branch is distorted; see ``mitigation.contrastive.corruption``."""

PRIORS = ("none", "blank", "noise", "neutral", "swapped")
"""What replaces the picture of a sentence; see ``mitigation.prior_correction``."""

PRIOR_PICTURES = 32

BRANCHES = ("auto", "paired", "sequential")
"""How the second branch is run; see ``mitigation.vcd.VCD``."""


def check_number(
    name: str, value: Any, least: float = -math.inf, most: float = math.inf, *, hint: str = "0 changes nothing"
) -> None:
    """Check that the setting ``name`` is a finite number from ``least`` to ``most``; ``hint`` ends the sentence."""
    if not _is_finite(value) or not least <= value <= most:
        raise UserError(f"{name}={value!r}; {name} is a finite number{_bounds(least, most)}; {hint}")


def check_count(name: str, value: Any, least: int, most: int | None = None, *, hint: str = "choose one") -> None:
    """Check that the setting ``name`` is a whole number from ``least`` to ``most``; ``hint`` ends the sentence."""
    upper = math.inf if most is None else float(most)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= upper:
        raise UserError(f"{name}={value!r}; {name} is a whole number{_bounds(float(least), upper)}; {hint}")


def check_choice(name: str, value: Any, choices: Sequence[str], *, hint: str = "choose one") -> None:
    """Check that the setting ``name`` is one of ``choices``; ``hint`` ends the sentence."""
    if value not in choices:
        raise UserError(f"{name}={value!r}; {name} is one of {', '.join(choices)}; {hint}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bounds(least: float, most: float) -> str:
    if most < math.inf:
        return f" from {least:g} to {most:g}"
    return f", {least:g} or more" if least > -math.inf else ""


def check_alpha(alpha: Any) -> None:
    """Check α, the weight of the contrast."""
    check_number("alpha", alpha, 0.0, hint="0 means no contrast")


def check_beta(beta: Any) -> None:
    """Check that β, the plausibility cutoff relative to the most likely token, is in (0, 1] or None."""
    if beta is not None and not (_is_finite(beta) and 0 < beta <= 1):
        raise UserError(f"beta={beta!r}; the plausibility cutoff lies in (0, 1]; null (None) switches it off")


def check_noise_step(step: Any) -> None:
    """Check that ``step`` is one of the diffusion's steps."""
    check_count("noise_step", step, 0, NOISE_STEPS - 1, hint="the last one has the most noise")


def check_prior(prior: Any, pictures: Any) -> None:
    """Check that ``prior`` is one of ``PRIORS``, and ``pictures`` a number of pictures that it supports."""
    check_choice("prior", prior, PRIORS)
    check_count("pictures", pictures, 1, PRIOR_PICTURES, hint="the prior is a mean over them, each one more forward")


def check_temperature(temperature: Any) -> None:
    """Check that ``temperature`` is a finite number above 0."""
    if not _is_finite(temperature) or temperature <= 0:
        raise UserError(
            f"temperature={temperature!r}; the temperature of sampling is a finite number above 0; 1 leaves the "
            "probabilities as they are, and without sampling the answer is greedy"
        )


def check_shift(shift: Any) -> None:
    """Check the logits that are added to a Yes/No margin."""
    check_number("shift", shift)


def check_seed(seed: Any) -> None:
    """Check that ``seed`` is an integer."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed={seed!r}; a seed is an integer, such as 0")


def check_layer(layer: Any) -> None:
    """Check that ``layer`` is None or a layer of the residual stream after the embeddings."""
    if layer is not None:
        check_count("layer", layer, 1, hint="it counts the decoder layers before it, and null (None) takes the best")


def check_layers(layers: Any) -> None:
    """Check that ``layers`` are None (all) or distinct indices of layers."""
    if layers is None:
        return
    listed = isinstance(layers, list | tuple | range) and len(layers) > 0
    indices = listed and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in layers)
    if not indices or len(set(layers)) < len(layers):
        raise UserError(f"layers={layers!r}; layers are indices from 0, each once; null (None) takes all of them")


def set_images(method: Any) -> None:
    """Check the numbers of pictures that a frozen ``method`` changes, and store them as a tuple."""
    numbers = method.images
    if numbers is None:
        return
    listed = isinstance(numbers, list | tuple) or type(numbers).__name__ == "ListConfig"
    if not (listed and len(numbers) and all(type(number) is int and number >= 1 for number in numbers)):
        raise UserError(f"images={numbers!r}; pictures are numbered from 1; give a list such as [1], or null for all")
    object.__setattr__(method, "images", tuple(numbers))


def check_pictured(prompts: "Sequence[Prompt]", why: str) -> None:
    """Check that every prompt has an image; ``why`` goes into the error message."""
    blind = [prompt.key or prompt.text for prompt in prompts if prompt.image is None]
    if blind:
        raise UserError(f"no image in prompt '{blind[0]}'; {why}; ask it with another method")


def check_teaches(questions: Sequence[str], safe: Sequence[bool], *, seed: int) -> None:
    """Check that a direction between the two classes can be fitted and judged on held-out questions."""
    import numpy as np

    from interp.tools.held_out import FEWEST_CASES, FEWEST_GROUPS, FOLDS, grouped_folds

    labels = np.asarray(safe, dtype=int)
    counts = {"safe": int(labels.sum()), "unsafe": int((1 - labels).sum())}
    if min(counts.values()) < FEWEST_CASES:
        raise UserError(
            f"there are {counts['safe']} safe and {counts['unsafe']} unsafe cases to learn from; at least "
            f"{FEWEST_CASES} of each are needed, with {FEWEST_GROUPS} different texts; add cases, or raise limit"
        )
    grouped_folds(labels, np.asarray(questions), folds=FOLDS, seed=seed, names=("unsafe", "safe"))


def question_halves(questions: Sequence[str], safe: Sequence[bool], seed: int) -> list[int]:
    """Return the half, 0 or 1, of each case; all cases of a question share one.

    Raises:
        UserError: a half lacks a label.
    """
    different = list(dict.fromkeys(questions))
    random.Random(seed).shuffle(different)
    half = {question: number % 2 for number, question in enumerate(different)}
    halves = [half[question] for question in questions]
    if len(set(zip(halves, safe, strict=True))) < 4:
        raise UserError(
            f"{len(different)} different questions with {sum(safe)} safe and {len(safe) - sum(safe)} unsafe cases; a "
            "drift is fitted to half of the questions and chosen on the other, and each needs both; give more cases"
        )
    return halves
