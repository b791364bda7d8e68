"""The failure analysis: attention of failures and matched successes within each subset, and what the image does there.

Writes into a run's directory: ``attention/`` (``selftest.json``, the tables of
:mod:`experiments.evaluation.attention_log` as Parquet, ``maps_<subset>.safetensors``), ``figures/``, and
``attention.json``, which holds all that was concluded.

Failures against successes: means and their difference with clustered bootstrap intervals. Pure; plain arrays.

Clusters are resampled as a whole, over failures and successes together. That a failure is matched with a success is
not used here: it only makes the two groups alike, and the intervals are a little wider for it.

What the image does to the margin, beside where attention goes: two interventions on the same cases.

*Without the edge*: image → verdict attention is cut, so that the picture reaches the verdict only through what other
tokens took from it. *Swapped*: the counterfactual twin's picture (same sentence, opposite truth), else
another case's. Attention is not causation; these are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.benchmarks.images import open_image
from experiments.evaluation.attention_log import (
    Recorded,
    Tables,
    joined,
    margins,
    margins_without_image_edge,
    record,
    tables_of,
    write_maps,
    write_tables,
)
from experiments.evaluation.matching import MatchedSubset, answered, image_donor, match_failures
from experiments.runs.directory import write_json
from experiments.studies.attention.figures import Shown, attribute, draw_failures, shown_of
from experiments.studies.attention.recorder_check import self_test_once
from experiments.studies.attention.summary import summarise
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM


def effects(
    vlm: "VLM",
    samples: Sequence[Sample],
    recorded: Recorded,
    usable: Sequence[Sample],
    *,
    batch_size: int,
    layers: Sequence[int] | None,
    seed: int,
) -> pd.DataFrame:
    """One row a case: margins as answered, without the edge (in ``layers``), and with another picture; all in logits.

    ``usable`` are the cases whose picture may be taken; where there is no other one, ``margin_swapped`` is missing.
    """
    others = [image_donor(usable, sample, seed=seed) for sample in samples]
    table = pd.DataFrame(
        {
            "case": [sample.id for sample in samples],
            "margin": recorded.margins,
            "margin_without_edge": margins_without_image_edge(
                vlm, recorded.prompts, batch_size=batch_size, layers=layers
            ),
            "margin_swapped": float("nan"),
            "swapped_with": [other.id if other else None for other in others],
            "twin": [
                other is not None and sample.pair is not None and other.pair == sample.pair
                for sample, other in zip(samples, others, strict=True)
            ],
        }
    )
    prompts = [
        replace(prompt, image=open_image(other.image))
        for prompt, other in zip(recorded.prompts, others, strict=True)
        if other is not None and other.image is not None
    ]
    if prompts:
        table.loc[table["swapped_with"].notna(), "margin_swapped"] = margins(vlm, prompts, batch_size=batch_size)
    return table


ARM = "baseline"  # what the model itself does: the interventions are on it, not on a method around it
LIMIT = 24
FIGURES = 3


def analyse_failures(
    vlm: "VLM",
    samples: Sequence[Sample],
    records: Sequence[Mapping[str, Any]],
    out_dir: Path,
    *,
    seed: int,
    draws: int,
    limit: int | None = LIMIT,
    batch_size: int = 24,
    max_new_tokens: int = 16,
    layers: Sequence[int] | None = None,
    segments: Sequence[str] | None = None,
    figures: int = FIGURES,
    captum: bool = False,
) -> dict[str, Any]:
    """The contents of ``attention.json``, which is written to ``out_dir`` with the tables, maps and figures.

    Args:
        records: the run's predictions, of which the baseline's are looked at.
        limit: failures looked at in a subset, None for all.
        layers: those that are logged and cut, default all.
        segments: those that ``masses.parquet`` keeps, default all.
        figures: how many of the worst failures are drawn.
        captum: whether to add attributions of those failures.

    Raises:
        UserError: an unknown layer or segment, no baseline record, or a self-test that fails (with its numbers).
    """
    check_choice(vlm, layers, segments)
    chosen = match_failures(samples, records, arm=ARM, limit=limit, seed=seed)
    usable = answered(samples, records, arm=ARM)
    folder = out_dir / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    tested = self_test_once(vlm, folder / "selftest.json")
    _clear(out_dir)
    parts: list[Tables] = []
    worst: list[Shown] = []
    for subset, some in chosen.items():
        if not some.cases:
            continue
        members = [case.sample for case in some.cases]
        seen = record(vlm, members, batch_size=batch_size, max_new_tokens=max_new_tokens, layers=layers)
        done = effects(vlm, members, seen, usable, batch_size=batch_size, layers=layers, seed=seed)
        parts.append(tables_of(subset, some.cases, seen, done, vlm.tokenizer))
        write_maps(seen, [sample.id for sample in members], folder / f"maps_{subset}.safetensors")
        worst += _worst(some, seen, figures)
    tables = joined(parts) if parts else None
    if tables is not None:
        write_tables(_kept(tables, segments), folder)
    result = {"arm": ARM, "selftest": tested} | summarise(chosen, tables, seed=seed, draws=draws)
    drawn = _by_turns(worst)[:figures]
    result["figures"] = draw_failures(out_dir, drawn, result)
    if captum:
        result["attribution"] = attribute(vlm, drawn, out_dir)
    write_json(out_dir / "attention.json", result)
    return result


def _clear(out_dir: Path) -> None:
    """Takes away what an earlier analysis of this run left, lest its figures be read with the new numbers."""
    figures = ("figures/att*_*.png", "figures/att*_*.svg")
    for pattern in ("attention.json", "attention/*.parquet", "attention/*.safetensors", *figures):
        for path in out_dir.glob(pattern):
            path.unlink()


def check_choice(vlm: "VLM", layers: Sequence[int] | None, segments: Sequence[str] | None) -> None:
    """UserError for a layer that the model has not, or a segment that is none, naming the known ones."""
    from interp.segments import SEGMENTS

    known = list(vlm.layout.attentions(vlm.model))
    for layer in layers or ():
        if layer not in known:
            raise UserError(f"no layer {layer} in {vlm.name}; known: {known[0]} to {known[-1]}; choose among these")
    for name in segments or ():
        if name not in SEGMENTS:
            raise UserError(f"no segment '{name}'; known: {', '.join(SEGMENTS)}; choose among these")


def _kept(tables: Tables, segments: Sequence[str] | None) -> Tables:
    from interp.attention_tables import select

    return tables if segments is None else tables._replace(masses=select(tables.masses, segments=segments))


def _worst(chosen: MatchedSubset, recorded: Recorded, count: int) -> list[Shown]:
    """The failures whose margin is furthest on the wrong side, worst first."""
    failures = [index for index, case in enumerate(chosen.cases) if case.failed]
    wrong = {index: recorded.margins[index] * (-1 if chosen.cases[index].sample.gold == "yes" else 1)
             for index in failures}  # fmt: skip
    best = sorted(failures, key=lambda index: (-wrong[index], chosen.cases[index].sample.id))[:count]
    return [shown_of(chosen.cases[index].sample, recorded, index) for index in best]


def _by_turns(shown: Sequence[Shown]) -> list[Shown]:
    """The worst of each subset, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranked = []
    for one in shown:
        seen[one.sample.subset] = seen.get(one.sample.subset, 0) + 1
        ranked.append((seen[one.sample.subset], one))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]
