"""The failure analysis: attention of failures and matched successes within each subset, and what the image does there.

Attention is not causation, so two interventions on the same cases stand beside it. *Without the edge*: image → verdict
attention is cut, and the picture reaches the verdict only through what other tokens took from it. *Swapped*: the case
gets the picture of its counterfactual twin (same sentence, opposite truth), or else that of another case.

Writes into a run's directory: ``attention/`` (``selftest.json``, the tables of ``AttentionTables`` as Parquet,
``maps_<subset>.safetensors``), ``figures/``, rows of ``results.csv``, and ``attention.json`` with sentences, words and
the names of figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.benchmarks.images import open_image
from experiments.evaluation.matching import answered, image_donor, match_failures
from experiments.metrics.claims import RULES
from experiments.metrics.pairs import are_pair
from experiments.report.figures import FORMATS
from experiments.report.text import lines
from experiments.runs.analyses import guarded
from experiments.runs.results_table import write_results
from experiments.runs.store import write_json
from experiments.studies.attention.figures import SCREEN_ALONE, attribute_cases, draw_by_layer, draw_case
from experiments.studies.attention.summary import summarise
from experiments.studies.attention.tables import (
    AttendedCase,
    AttentionTables,
    attention_tables,
    concatenated,
    record_answers,
    write_maps,
    write_tables,
)
from experiments.types import Sample
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


NAME = "attention"  # of this analysis among those of a run
ARM = "baseline"  # the model itself: the interventions are on it, not on a method around it
EDGES = (("image", "verdict"),)
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
    max_new_tokens: int = 16,
    layers: Sequence[int] | None = None,
    segments: Sequence[str] | None = None,
    figures: int = FIGURES,
    captum: bool = False,
    form: str = SCREEN_ALONE,
) -> dict[str, Any]:
    """Writes ``attention.json``, the tables, maps and figures into ``out_dir``, and returns the contents of the first.

    Figures and attributions that fail are missing, each by itself (``experiments.runs.analyses``). Batches are those of
    ``vlm.batches``.

    Args:
        records: the run's predictions; those of the baseline are analysed.
        limit: the most failures of a subset, None for all.
        layers: those that are recorded and cut, default all.
        segments: those that ``masses.parquet`` keeps, default all.
        figures: how many of the worst failures are drawn.
        captum: whether to add attributions of those failures.
        form: of figure files at a column's width beside PNG (``experiments.report.figures.FORMATS``).

    Raises:
        UserError: a layer or segment is unknown, there is no baseline record, or the self-test fails.
    """
    check_selection(vlm, layers, segments)
    matched = match_failures(samples, records, arm=ARM, limit=limit, seed=seed)
    usable = answered(samples, records, arm=ARM)
    folder = out_dir / "attention"
    folder.mkdir(parents=True, exist_ok=True)
    tested = self_test(vlm, folder / "selftest.json")
    _clear(out_dir)
    parts: list[AttentionTables] = []
    worst: list[list[AttendedCase]] = []
    for subset, chosen in matched.items():
        if not chosen.cases:
            continue
        members = [case.sample for case in chosen.cases]
        recorded = record_answers(vlm, members, max_new_tokens=max_new_tokens, layers=layers)
        margins = intervention_margins(vlm, recorded, usable, layers=layers, seed=seed)
        parts.append(attention_tables(subset, chosen.cases, recorded, margins, vlm.tokenizer))
        write_maps(recorded, folder / f"maps_{subset}.safetensors")
        worst.append(worst_first([one for one, case in zip(recorded, chosen.cases, strict=True) if case.failed]))
    tables = concatenated(parts) if parts else None
    if tables is not None:
        masses = tables.masses if segments is None else tables.masses[tables.masses["segment"].isin(segments)]
        write_tables(tables._replace(masses=masses), folder)
    rows, described = summarise(matched, tables, seed=seed, draws=draws)
    results = write_results(out_dir, rows)
    result = {"rules": RULES, "arm": ARM, "selftest": tested, **described, "figures": []}
    result["sentences"] = lines("attention", results=results)
    write_json(out_dir / "attention.json", result)  # which stays, whatever becomes of its figures
    by_turns = [one for turn in zip_longest(*worst) for one in turn if one is not None]
    drawn = by_turns[:figures]
    with guarded(out_dir, "attention_figures", "the figures of attention were not drawn", part_of=NAME):
        by_layer = draw_by_layer(out_dir, results, form)
        result["figures"] = [*(name for one in drawn for name in draw_case(out_dir, one, form)), *by_layer]
    if captum:
        with guarded(out_dir, "attribution", "the failures were not attributed to their inputs", part_of=NAME):
            result["attribution"] = attribute_cases(vlm, drawn, out_dir, form)
    write_json(out_dir / "attention.json", result)
    return result


def intervention_margins(
    vlm: "VLM",
    recorded: Sequence[AttendedCase],
    usable: Sequence[Sample],
    *,
    layers: Sequence[int] | None,
    seed: int,
) -> pd.DataFrame:
    """One row a case: margins as answered, without the edge (cut in ``layers``), and with another picture; in logits.

    ``usable`` are the cases whose picture may be taken; where there is no other one, ``margin_swapped`` is NaN.
    """
    from interp.tools.knockout import knockout

    with knockout(vlm, EDGES, layers=layers):
        without_edge = _margins(vlm, [one.prompt for one in recorded])
    others = [image_donor(usable, one.sample, seed=seed) for one in recorded]
    table = pd.DataFrame(
        {
            "case": [one.sample.id for one in recorded],
            "margin": [one.margin for one in recorded],
            "margin_without_edge": without_edge,
            "margin_swapped": float("nan"),
            "swapped_with": [other.id if other else None for other in others],
            "twin": [
                other is not None and are_pair(one.sample, other) for one, other in zip(recorded, others, strict=True)
            ],
        }
    )
    prompts = [
        replace(one.prompt, image=open_image(other.image))
        for one, other in zip(recorded, others, strict=True)
        if other is not None and other.image is not None
    ]
    if prompts:
        table.loc[table["swapped_with"].notna(), "margin_swapped"] = _margins(vlm, prompts)
    return table


def _margins(vlm: "VLM", prompts: "Sequence[Prompt]") -> Float[np.ndarray, " case"]:
    return vlm.batches.scores(prompts).double().numpy()


def _clear(out_dir: Path) -> None:
    """Removes the results of an earlier analysis of this run, so that no old figure stands beside new numbers."""
    figures = [f"figures/att*_*.{form}" for form in (SCREEN_ALONE, *FORMATS)]
    for pattern in ("attention.json", "attention/*.parquet", "attention/*.safetensors", *figures):
        for path in out_dir.glob(pattern):
            path.unlink()


def check_selection(vlm: "VLM", layers: Sequence[int] | None, segments: Sequence[str] | None) -> None:
    """Checks the layers and segments asked for.

    Raises:
        UserError: the model has no such layer, or there is no such segment; the known ones are named.
    """
    from interp.hooks.attention import chosen_layers
    from interp.segments import SEGMENTS

    chosen_layers(vlm, layers)
    if unknown := [name for name in segments or () if name not in SEGMENTS]:
        raise UserError(f"no segment '{unknown[0]}'; known: {', '.join(SEGMENTS)}; choose among these")


def worst_first(failures: Sequence[AttendedCase]) -> list[AttendedCase]:
    """The failures, whose margin is furthest on the wrong side first."""

    def wrong(one: AttendedCase) -> float:
        return one.margin * (-1 if one.sample.gold == "yes" else 1)

    return sorted(failures, key=lambda one: (-wrong(one), one.sample.id))


def self_test(vlm: "VLM", path: Path) -> dict[str, Any]:
    """What the recorder's self-test measured, which ``path`` holds as well.

    Raises:
        UserError: it fails; the error has the numbers.
    """
    from interp.attention.check import check_recorder

    summary = {
        "model": vlm.name,
        "revision": vlm.revision,
        "device": vlm.device.type,
        "dtype": str(vlm.dtype).removeprefix("torch."),
        "passed": True,
        **asdict(check_recorder(vlm)),
    }
    write_json(path, summary)
    return summary
