"""What the tools of ``interp`` measure on one organism, to be compared with the cause that was put into it.

Everything is measured on the scored cases of IconWorld's test split, without knowledge of how the organism was made.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.config import Run
from experiments.evaluation.study import limited
from experiments.evaluation.training import examples
from experiments.metrics.bootstrap import auroc
from experiments.metrics.findings import plain
from experiments.model_organism.evaluate import perception_accuracy
from interp.attention_knockout import knockout_effect
from interp.hooks.residual import residuals
from interp.probes import probe
from interp.vlm import Prompt, load
from mitigation.prior_correction import prior_margins, prior_share

BATCH = 64


def traits(run: Run, *, captions: int) -> dict[str, Any]:
    """``run``'s model on ``run``'s cases; rates are fractions of 1, margins in logits.

    ``captions``: share named right. ``auroc`` and ``within``: of the margin over all cases, and within each template
    (the mean over those with both kinds): what a threshold of its own for each could reach. ``between_templates``:
    share of the margins' variance. ``prior``: ``PriorShare`` against the mean of four neutral pictures.
    ``image_effect``: mean size of the margin's change when the verdict may not look at the image, over the margins'
    standard deviation; ``auroc_when_cut``: the AUROC then. ``truth``: held-out AUROC of a linear probe for the truth at
    the verdict, at the best layer.
    """
    vlm = load(run.weights)
    samples = [s for s in limited(run.benchmark.load().samples, run.limit) if s.subset != "control"]
    prompts, safe = examples(samples)
    unsafe = ~np.array(safe)
    margins = _by_batch(vlm.score, prompts)
    priors = _by_batch(partial(prior_margins, vlm, prior="neutral"), prompts)
    sentences = [sample.tags["template"] for sample in samples]
    cut = knockout_effect(vlm, prompts, [("image", "verdict")], batch_size=BATCH).numpy()
    read = residuals(vlm, prompts, batch_size=BATCH)
    balance = (sentences, [sample.tags["concept"] for sample in samples])
    found = probe(read.values[0], safe, [sample.cluster for sample in samples], balance=balance, shuffles=1)
    share = prior_share(margins, priors, [sample.text for sample in samples])
    return plain(
        {
            "captions": perception_accuracy(vlm, "test", per_kind=captions, kinds=("caption",))["caption"]["accuracy"],
            "auroc": auroc(-margins, unsafe),
            "within": _within(margins, unsafe, sentences),
            "between_templates": _between(margins, sentences),
            "prior": share._asdict(),
            "image_effect": float(np.abs(cut).mean() / margins.std()),
            "auroc_when_cut": auroc(-(margins + cut), unsafe),
            "truth": None if np.isnan(found.auroc).all() else float(np.nanmax(found.auroc)),
            "n": len(prompts),
        }
    )


def _by_batch(of: Callable[[list[Prompt]], Float[Tensor, "row"]], prompts: list[Prompt]) -> Float[np.ndarray, "case"]:
    return torch.cat([of(prompts[i : i + BATCH]) for i in range(0, len(prompts), BATCH)]).double().numpy()


def _within(margins: Float[np.ndarray, "case"], unsafe: np.ndarray, sentences: list[str]) -> float | None:
    names = np.array(sentences)
    found = [auroc(-margins[names == name], unsafe[names == name]) for name in np.unique(names)]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def _between(margins: Float[np.ndarray, "case"], sentences: list[str]) -> float:
    """Share of the margins' variance that lies between templates."""
    _, group = np.unique(sentences, return_inverse=True)
    means = np.bincount(group, weights=margins) / np.bincount(group)
    return float(means[group].var() / margins.var())
