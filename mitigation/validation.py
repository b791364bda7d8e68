"""Checks of methods' settings and prompts, before any weights load. Each raises ``UserError`` if it fails.

Imports no torch, so that mistakes in a configuration are reported at once.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import Prompt

NOISE_STEPS = 1000
NOISE_KINDS = ("diffusion", "blur", "black", "swapped")
"""How the picture of the second branch is distorted; see ``mitigation.contrastive.corruption``."""

PRIORS = ("none", "blank", "noise", "neutral", "swapped")
"""What replaces the picture of a sentence; see ``mitigation.prior_correction``."""

PRIOR_PICTURES = 32

BRANCHES = ("auto", "paired", "sequential", "lazy")
"""How the second branch is run; see ``mitigation.vcd.VCD``."""


def check_alpha(alpha: Any) -> None:
    """Checks that α, the weight of the contrast, is a finite number of at least 0."""
    if not _is_number(alpha) or not math.isfinite(alpha) or alpha < 0:
        raise UserError(f"alpha={alpha!r}; the contrast weight is a finite number, 0 or more; 0 means no contrast")


def check_beta(beta: Any) -> None:
    """Checks that β, the plausibility cutoff relative to the most likely token, is in (0, 1] or None."""
    if beta is not None and not (_is_number(beta) and 0 < beta <= 1):
        raise UserError(f"beta={beta!r}; the plausibility cutoff lies in (0, 1]; null (None) switches it off")


def check_teaches(questions: Sequence[str], safe: Sequence[bool], *, seed: int) -> None:
    """Checks that a direction between the two classes can be fitted and judged on held-out questions."""
    import numpy as np

    from interp.tools.lda import FEWEST_CASES, FEWEST_GROUPS, FOLDS, grouped_folds

    labels = np.asarray(safe, dtype=int)
    counts = {"safe": int(labels.sum()), "unsafe": int((1 - labels).sum())}
    if min(counts.values()) < FEWEST_CASES:
        raise UserError(
            f"there are {counts['safe']} safe and {counts['unsafe']} unsafe cases to learn from; it takes at least "
            f"{FEWEST_CASES} of each, of {FEWEST_GROUPS} different texts; add cases, or raise limit"
        )
    grouped_folds(labels, np.asarray(questions), folds=FOLDS, seed=seed, names=("unsafe", "safe"))


def check_noise_step(step: Any) -> None:
    """Checks that ``step`` is one of the diffusion's steps."""
    if not _is_integer(step) or not 0 <= step < NOISE_STEPS:
        raise UserError(
            f"noise_step={step!r}; the noise step is an integer from 0 (least) to {NOISE_STEPS - 1} (most noise)"
        )


def check_noise_kind(kind: Any) -> None:
    """Checks that ``kind`` is one of ``NOISE_KINDS``."""
    if kind not in NOISE_KINDS:
        raise UserError(
            f"noise={kind!r}; the second picture is one of {', '.join(NOISE_KINDS)}; for none at all take "
            f"method=text_only"
        )


def check_branch(branch: Any, beta: Any) -> None:
    """Checks that ``branch`` is one of ``BRANCHES``, and that there is a cutoff ``beta`` if it is lazy."""
    if branch not in BRANCHES:
        raise UserError(
            f"branch={branch!r}; the second branch is {', '.join(BRANCHES[:-1])} or {BRANCHES[-1]}; the answers are "
            f"the same, paired is the fastest with margins, sequential needs the least memory"
        )
    if branch == "lazy" and beta is None:
        raise UserError(
            "branch='lazy' with beta=None; without a plausibility cutoff no step can be skipped; set beta, or take "
            "branch=auto"
        )


def check_weight(weight: Any, *, least: float = -math.inf) -> None:
    """Checks that ``weight`` is a finite number of at least ``least``."""
    if not _is_number(weight) or not math.isfinite(weight) or weight < least:
        bound = "" if least == -math.inf else f", {least:g} or more"
        raise UserError(f"weight={weight!r}; the weight is a finite number{bound}; 0 changes nothing")


def check_number(name: str, value: Any, *, least: float, most: float = math.inf) -> None:
    """Checks that the setting ``name`` is a finite number from ``least`` to ``most``."""
    if not _is_number(value) or not math.isfinite(value) or not least <= value <= most:
        bound = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
        raise UserError(f"{name}={value!r}; {name} is a finite number {bound}; choose one in this range")


def check_gamma(gamma: Any) -> None:
    """Checks that γ, the weight of guidance, is a finite number of at least 1."""
    if not _is_number(gamma) or not math.isfinite(gamma) or gamma < 1:
        raise UserError(f"gamma={gamma!r}; the weight of guidance is a finite number, 1 or more; 1 means none")


def check_prior(prior: Any, pictures: Any) -> None:
    """Checks that ``prior`` is one of ``PRIORS``, and ``pictures`` a number of pictures that it supports."""
    if prior not in PRIORS:
        raise UserError(f"prior={prior!r}; the sentence alone is asked with {', '.join(PRIORS)}; choose one of these")
    if not _is_integer(pictures) or not 1 <= pictures <= PRIOR_PICTURES:
        raise UserError(
            f"pictures={pictures!r}; the prior is a mean over 1 to {PRIOR_PICTURES} pictures, each one more forward"
        )


def check_pictured(prompts: "Sequence[Prompt]", why: str) -> None:
    """Checks that every prompt has an image; ``why`` goes into the error message."""
    blind = [prompt.key or prompt.text for prompt in prompts if prompt.image is None]
    if blind:
        raise UserError(f"no image in prompt '{blind[0]}'; {why}; ask it with another method")


def check_layers(layers: Any) -> None:
    """Checks that ``layers`` are None (all) or distinct indices of layers."""
    if layers is None:
        return
    listed = isinstance(layers, list | tuple | range) and len(layers) > 0
    if not listed or not all(_is_integer(n) and n >= 0 for n in layers) or len(set(layers)) < len(layers):
        raise UserError(f"layers={layers!r}; layers are indices from 0, each once; null (None) takes all of them")


def check_temperature(temperature: Any) -> None:
    """Checks that ``temperature`` is a finite number above 0."""
    if not _is_number(temperature) or not math.isfinite(temperature) or temperature <= 0:
        raise UserError(
            f"temperature={temperature!r}; the temperature of sampling is a finite number above 0; 1 leaves the "
            f"probabilities as they are, and without sampling the answer is greedy"
        )


def check_seed(seed: Any) -> None:
    """Checks that ``seed`` is an integer."""
    if not _is_integer(seed):
        raise UserError(f"seed={seed!r}; a seed is an integer, such as 0")


def check_shift(shift: Any) -> None:
    """Checks that ``shift`` is a finite number of logits."""
    if not _is_number(shift) or not math.isfinite(shift):
        raise UserError(
            f"shift={shift!r}; the shift of the Yes/No margin is a finite number of logits; 0 changes nothing"
        )


def check_strength(strength: Any) -> None:
    """Checks that ``strength``, the factor of a vector added to the residual stream, is a finite number."""
    if not _is_number(strength) or not math.isfinite(strength):
        raise UserError(f"strength={strength!r}; the strength is a finite number; 0 changes nothing")


def check_layer(layer: Any) -> None:
    """Checks that ``layer`` is None or a layer of the residual stream after the embeddings."""
    if layer is not None and not (_is_integer(layer) and layer >= 1):
        raise UserError(
            f"layer={layer!r}; a residual layer is the number of decoder layers before it, 1 or more; "
            "null (None) takes the best"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
