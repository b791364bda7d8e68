"""Side effects of an adapter: does the model still perceive pictures, and where does it attend while it judges?

Both are measured on the model as it is passed in, with or without an adapter in effect.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.perception import perception_accuracy
from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import Answer, plain
from experiments.metrics.statistical_tests import wilson
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from mitigation.vrtuning.checkpoint import adapter_hash

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


Shares = Float[np.ndarray, " case"]


def utility(vlm: "VLM", *, per_kind: int) -> dict[str, Any] | None:
    """Perception questions of IconWorld's test split answered word for word: accuracy, Wilson interval, n, by kind.

    ``all`` pools the kinds. None where ``per_kind`` is 0.
    """
    if per_kind == 0:
        return None
    found = perception_accuracy(vlm, "test", per_kind=per_kind)
    right = {kind: round(entry["accuracy"] * entry["n"]) for kind, entry in found.items()}
    total = {kind: int(entry["n"]) for kind, entry in found.items()}
    right["all"], total["all"] = sum(right.values()), sum(total.values())
    return {
        kind: {"accuracy": right[kind] / n, "interval": wilson(right[kind], n), "n": n} for kind, n in total.items()
    }


def image_shares(vlm: "VLM", samples: Sequence[Sample], *, max_new_tokens: int) -> Shares:
    """Return each case's share of attention on the image, of what the sink leaves: the mean over heads and layers.

    It is read at the query of the answer's Yes or No, after the answer's own reasoning if there is any. An answer
    without a verdict gives NaN.
    """
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share
    from interp.margin import verdict_position

    def shares_of(prompts: "list[Prompt]") -> list[float]:
        with record_attention(vlm, queries=Queries.GENERATED) as log:
            token_ids = vlm.generate(prompts, max_new_tokens=max_new_tokens).token_ids
        shares = image_share(log.masses)
        steps = {row: verdict_position(vlm.tokenizer, ids, vlm.answer_ids) for row, ids in enumerate(token_ids)}
        means = shares[shares["step"] == shares["row"].map(steps)].groupby("row")["share"].mean()
        return [float(means.get(row, np.nan)) for row in steps]

    return np.array(vlm.batches.gathered(prompts_of(samples), shares_of), dtype=float)


def compare_shares(
    samples: Sequence[Sample], before: Shares, after: Shares, *, seed: int, draws: int
) -> dict[str, Any]:
    """Mean share before and after over the cases that have both, and the paired difference with its interval.

    ``statement`` is what may be said of the difference. None for every number where no case has both.
    """
    both = [at for at in np.argsort([sample.id for sample in samples]) if np.isfinite(before[at] + after[at])]
    if not both:
        return {"before": None, "after": None, "difference": None, "interval": None, "clusters": 0,
                "statement": Answer.CANNOT_TELL.value, "n": 0}  # fmt: skip
    difference = after[both] - before[both]
    cases = [samples[at] for at in both]
    texts, clusters, tags = zip(*((case.text, case.cluster, case.tags) for case in cases), strict=True)
    resamples = Resamples.of_cases(clusters, texts, tags, draws=draws, seed=seed)
    means = float(before[both].mean()), float(after[both].mean())
    drawn = resamples.drawn(lambda rows: rows.mean(difference))
    entry = resamples.difference(*means, drawn, [None], len(both)).entry
    assert entry is not None
    return {
        "before": means[0],
        "after": means[1],
        "difference": entry["value"],
        "interval": None if entry["low"] is None else (entry["low"], entry["high"]),
        **{name: entry[name] for name in ("clusters", "statement")},
        "n": len(both),
    }


def measure_side_effects(
    run: Run, vlm: "VLM", folders: Mapping[str, Path | None], perception: int, attention: int
) -> dict[str, dict[str, Any]]:
    """Name → ``utility`` and ``image_share`` of ``vlm`` with the adapter in each folder, or without where it is None.

    The baseline comes first; shares are compared with its, on the same scored cases of the run's benchmark. Batches are
    those of ``vlm.batches``. Without ``attention`` no share is measured.
    """
    from mitigation.vrtuning.model import adapted

    scored = [sample for sample in run.benchmark.load().samples if sample.subset in SCORED_SUBSETS]
    samples = limited(scored, attention if run.limit is None else min(attention, run.limit))
    samples = [sample for sample in samples if sample.image is not None]
    per_kind = perception if run.limit is None else min(perception, run.limit)
    found: dict[str, dict[str, Any]] = {}
    before: Shares | None = None
    for name, folder in folders.items():
        with nullcontext() if folder is None else adapted(vlm, folder, adapter_hash(folder)):
            found[name] = {"utility": utility(vlm, per_kind=per_kind)}
            if not samples:
                continue
            try:
                shares = image_shares(vlm, samples, max_new_tokens=run.max_new_tokens)
            except UserError as error:  # a model whose attention cannot be recorded is still worth evaluating
                found[name]["no_image_share"] = str(error)
                continue
        before = shares if before is None else before
        found[name]["image_share"] = compare_shares(samples, before, shares, seed=run.seed, draws=run.draws)
    return plain(found)
