"""Checks of methods' settings and prompts, before any weights load. Each raises ``UserError`` if it fails.

Imports no torch, so that mistakes in a configuration are reported at once.
"""

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import Prompt

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
    if (
        not listed
        or not len(numbers)
        or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in numbers)
    ):
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
