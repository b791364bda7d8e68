"""Side effects of an adapter: does the model still perceive pictures, and where does it attend while it judges?

Both are measured on the model as it is passed in, with or without an adapter in effect.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.benchmarks.iconworld.perception import KINDS
from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.perception import perception_accuracy
from experiments.evaluation.study import limited
from experiments.metrics.estimates import FACTORS, Resamples, factors
from experiments.metrics.findings import Answer, plain, wider
from experiments.metrics.statistical_tests import wilson
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from mitigation.vrtuning.checkpoint import adapter_hash

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

COLUMNS = ("case", "cluster", *FACTORS, "layer", "verdict", "answer")


def utility(vlm: "VLM", *, per_kind: int, kinds: Sequence[str] = KINDS) -> dict[str, Any] | None:
    """Perception questions of IconWorld's test split answered word for word: accuracy, Wilson interval, n, by kind.

    ``all`` pools the kinds. None where ``per_kind`` is 0.
    """
    if per_kind == 0:
        return None
    found = perception_accuracy(vlm, "test", per_kind=per_kind, kinds=kinds)
    counts = {kind: (round(one["accuracy"] * one["n"]), int(one["n"])) for kind, one in found.items()}
    counts["all"] = (sum(right for right, _ in counts.values()), sum(n for _, n in counts.values()))
    return {kind: {"accuracy": right / n, "interval": wilson(right, n), "n": n} for kind, (right, n) in counts.items()}


def image_shares(vlm: "VLM", samples: Sequence[Sample], *, max_new_tokens: int) -> pd.DataFrame:
    """Case, cluster, layer → the share of attention on the image, mean over heads, of what the sink leaves.

    ``verdict`` is that of the query off which the answer's Yes or No is read, after the answer's own reasoning where
    there is some (missing for an answer without a verdict); ``answer`` is the mean over all tokens of the answer.
    """
    pictured = [sample for sample in samples if sample.image is not None]
    shares = vlm.batches.gathered(prompts_of(pictured), partial(_shares_of, vlm, max_new_tokens=max_new_tokens))
    tables = [
        table.assign(case=sample.id, cluster=sample.cluster, **{name: sample.tags.get(name) for name in FACTORS})
        for sample, table in zip(pictured, shares, strict=True)
    ]
    none = pd.DataFrame({name: [] for name in COLUMNS})
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)] if tables else none


def _shares_of(vlm: "VLM", prompts: "list[Prompt]", *, max_new_tokens: int) -> list[pd.DataFrame]:
    """For each prompt: layer, ``verdict`` and ``answer`` as in ``image_shares``."""
    from interp.attention.record import Queries, record_attention
    from interp.attention.tables import image_share
    from mitigation.reasoning import verdict_position

    with record_attention(vlm, queries=Queries.GENERATED) as log:
        generation = vlm.generate(prompts, max_new_tokens=max_new_tokens)
    shares = image_share(log.masses)
    places = [verdict_position(vlm, ids) for ids in generation.token_ids]
    lengths = [len(ids) for ids in generation.token_ids]
    rows = shares["row"].to_numpy(int)
    shares = shares[shares["step"].to_numpy() < np.array(lengths)[rows]]
    at = np.array([-1 if place is None else place for place in places])[shares["row"].to_numpy(int)]
    verdict = shares[shares["step"].to_numpy() == at].set_index(["row", "layer"])["share"].rename("verdict")
    answer = shares.groupby(["row", "layer"])["share"].mean().rename("answer")
    table = pd.concat([answer, verdict], axis=1).reset_index()
    return [table[table["row"] == row].drop(columns="row") for row in range(len(prompts))]


def compare_shares(before: pd.DataFrame, after: pd.DataFrame, column: str, *, seed: int, draws: int) -> dict[str, Any]:
    """Mean share before and after over the cases that have both, and the paired difference with its interval.

    All layers' mean, and ``by_layer`` the means alone; ``statement`` is what may be said of the difference. None for
    every number where no case has both.
    """
    wide = [table.pivot(index="case", columns="layer", values=column) for table in (before, after)]
    shared = [case for case in wide[0].dropna().index if case in set(wide[1].dropna().index)]
    if not shared:
        return {"before": None, "after": None, "difference": None, "interval": None, "clusters": 0,
                "statement": Answer.CANNOT_TELL.value, "n": 0, "by_layer": {}}  # fmt: skip
    first, second = (table.loc[shared] for table in wide)
    difference = (second.mean(axis=1) - first.mean(axis=1)).to_numpy(float)
    of_case = before.drop_duplicates("case").set_index("case").loc[shared]
    tags = [dict(row) for row in of_case[list(FACTORS)].to_dict("records")]
    resamples = Resamples.of(pd.factorize(of_case["cluster"])[0], factors(tags), draws=draws, seed=seed)
    means = float(first.to_numpy().mean()), float(second.to_numpy().mean())
    drawn = resamples.drawn(lambda some: some.mean(difference))
    entry = resamples.difference(*means, drawn, [None], len(shared)).entry
    assert entry is not None
    ends = wider(entry)
    return {
        "before": means[0],
        "after": means[1],
        "difference": entry["value"],
        "interval": None if ends["low"] is None else (ends["low"], ends["high"]),
        "clusters": entry["clusters"],
        "statement": entry["statement"],
        "n": len(shared),
        "by_layer": {str(int(layer)): [float(first[layer].mean()), float(second[layer].mean())] for layer in first},
    }


def measure_side_effects(
    run: Run,
    vlm: "VLM",
    folders: Mapping[str, Path | None],
    *,
    perception: int,
    attention: int,
    kinds: Sequence[str] = KINDS,
) -> dict[str, dict[str, Any]]:
    """Name → ``utility`` and ``image_share`` of ``vlm`` with the adapter in each folder, or without where it is None.

    The baseline comes first; shares are compared with its, on the same scored cases of the run's benchmark. Batches are
    those of ``vlm.batches``. Without ``attention`` no share is measured.
    """
    from mitigation.vrtuning.model import adapted

    scored = [sample for sample in run.benchmark.load().samples if sample.subset in SCORED_SUBSETS]
    samples = limited(scored, attention if run.limit is None else min(attention, run.limit))
    per_kind = perception if run.limit is None else min(perception, run.limit)
    found: dict[str, dict[str, Any]] = {}
    before: pd.DataFrame | None = None
    for name, folder in folders.items():
        with nullcontext() if folder is None else adapted(vlm, folder, adapter_hash(folder)):
            found[name] = {"utility": utility(vlm, per_kind=per_kind, kinds=kinds)}
            if not samples:
                continue
            try:
                shares = image_shares(vlm, samples, max_new_tokens=run.max_new_tokens)
            except UserError as error:  # a model whose attention cannot be recorded is still worth evaluating
                found[name]["no_image_share"] = str(error)
                continue
        before = shares if before is None else before
        found[name]["image_share"] = {
            column: compare_shares(before, shares, column, seed=run.seed, draws=run.draws)
            for column in ("verdict", "answer")
        }
    return plain(found)
