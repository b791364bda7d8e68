"""The failure analysis: attention of failures and matched successes within each subset, and what the image does there.

Attention is not causation. So two interventions on the same cases go with it. *Without the edge*: image → verdict
attention is cut, and the picture reaches the verdict only through what other tokens took from it. *Swapped*: the case
gets the picture of its counterfactual twin (same sentence, opposite truth), or else the picture of another case.

The analysis writes ``attention/cases.csv``, ``figures/``, rows of ``results.csv``, and ``attention.json`` with
sentences, words and the names of figures.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.benchmarks.images import open_image
from experiments.evaluation.looking_inside import yes_or_no
from experiments.evaluation.matching import answered, image_donor, match_failures
from experiments.metrics.case_groups import are_pair
from experiments.metrics.estimates import RULES
from experiments.report.sections import guarded
from experiments.report.tables import lines
from experiments.runs.results_table import write_results
from experiments.runs.store import write_json
from experiments.studies.attention.cases import AttendedCase, case_table, draw_case, record_answers, words_of
from experiments.studies.attention.summary import summarise, top_words
from experiments.types import Sample

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


NAME = "attention"  # of this analysis among the analyses of a run
ARM = "baseline"  # the interventions are on the model, not on a method around it
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
    verdict: Callable[[Sample, str], str | None] = yes_or_no,
    limit: int | None = LIMIT,
    max_new_tokens: int = 16,
    layers: Sequence[int] | None = None,
    figures: int = FIGURES,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Write ``attention.json``, the table and the figures into ``out_dir``, and return the contents of the first.

    If figures fail, the rest stays (``experiments.report.sections``). ``vlm.batches`` forms the batches.

    Args:
        vlm: the model.
        samples: the cases of the run.
        records: the run's predictions; the baseline's are analysed.
        out_dir: the run's directory.
        seed: of matching and bootstrap.
        draws: of the bootstrap.
        verdict: reads an answer to a case.
        limit: the most failures of a subset, None for all.
        max_new_tokens: of an answer.
        layers: that are recorded and cut, default all.
        figures: how many of the worst failures are drawn.
        notes: what the margin is, in sentences.

    Raises:
        UserError: a layer is unknown, there is no baseline record, or the self-test fails.
    """
    from interp.hooks.attention import chosen_layers

    chosen_layers(vlm, layers)
    matched = match_failures(samples, records, arm=ARM, limit=limit, seed=seed)
    usable = answered(samples, records, arm=ARM)
    tested = self_test(vlm)
    _clear(out_dir)
    tables, words = list[pd.DataFrame](), list[pd.DataFrame]()
    worst: list[list[AttendedCase]] = []
    for subset, chosen in matched.items():
        if chosen.cases:
            members = [case.sample for case in chosen.cases]
            recorded = record_answers(vlm, members, max_new_tokens=max_new_tokens, layers=layers)
            margins = intervention_margins(vlm, recorded, usable, layers=layers, seed=seed)
            tables.append(case_table(subset, chosen.cases, recorded, margins, verdict))
            failures = [each for each, case in zip(recorded, chosen.cases, strict=True) if case.failed]
            words += map(words_of, failures)
            worst.append(sorted(failures, key=lambda each: (-each.wrong_by, each.sample.id)))
    cases = pd.concat(tables, ignore_index=True) if tables else None
    if cases is not None:
        (out_dir / "attention").mkdir(parents=True, exist_ok=True)
        cases.to_csv(out_dir / "attention" / "cases.csv", index=False)
    results = write_results(out_dir, summarise(matched, cases, seed=seed, draws=draws))
    result = {"rules": RULES, "arm": ARM, "selftest": tested, "words": top_words(words), "figures": []}
    result["sentences"] = [*lines("attention", results=results), *notes]
    write_json(out_dir / "attention.json", result)  # it stays if figures fail
    by_turns = [each for turn in zip_longest(*worst) for each in turn if each is not None]
    with guarded(out_dir, "attention_figures", "the figures of attention were not drawn", part_of=NAME):
        result["figures"] = [name for each in by_turns[:figures] for name in draw_case(out_dir, each)]
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
    """Return a row for each case: margins as answered, without the edge (cut in ``layers``), and with another picture.

    Margins are in logits. Pictures come from the ``usable`` cases. If there is no other one, ``margin_swapped`` is NaN.
    """
    from interp.tools.knockout import knockout, with_openings

    with knockout(vlm, EDGES if vlm.metric is None else with_openings(*EDGES), layers=layers):
        without_edge = _margins(vlm, [each.prompt for each in recorded])
    donors = [image_donor(usable, each.sample, seed=seed) for each in recorded]
    both = list(zip(recorded, donors, strict=True))
    table = pd.DataFrame({
        "margin": [each.margin for each in recorded],
        "margin_without_edge": without_edge,
        "margin_swapped": float("nan"),
        "swapped_with": [donor.id if donor else None for donor in donors],
        "twin": [donor is not None and are_pair(each.sample, donor) for each, donor in both],
    })  # fmt: skip
    prompts = [
        replace(each.prompt, image=open_image(donor.image)) for each, donor in both if donor and donor.image is not None
    ]
    if prompts:
        table.loc[table["swapped_with"].notna(), "margin_swapped"] = _margins(vlm, prompts)
    return table


def _margins(vlm: "VLM", prompts: "Sequence[Prompt]") -> Float[np.ndarray, " case"]:
    return vlm.batches.scores(prompts).double().numpy()


def _clear(out_dir: Path) -> None:
    """Remove the results of an earlier analysis of this run, so that no old figure is next to new numbers."""
    for pattern in ("attention.json", "attention/cases.csv", "figures/attention_*.png"):
        for path in out_dir.glob(pattern):
            path.unlink()


def self_test(vlm: "VLM") -> dict[str, Any]:
    """Return what the recorder's self-test measured.

    Raises:
        UserError: it fails; the error has the numbers.
    """
    from interp.attention.check import check_recorder

    return {
        "model": vlm.name,
        "revision": vlm.revision,
        "device": vlm.device.type,
        "dtype": str(vlm.dtype).removeprefix("torch."),
        "passed": True,
        **asdict(check_recorder(vlm)),
    }
