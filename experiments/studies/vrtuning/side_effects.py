"""Side effects of an adapter: does the model still perceive pictures, and where does it attend while it judges?

Both are measured on the model as it is passed in, with or without an adapter in effect. The rows of the results table
name the adapter as their arm. The report has them next to what each arm's adapter was trained on.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.perception import perception_accuracy
from experiments.evaluation.study import Study
from experiments.metrics.compare import difference
from experiments.metrics.estimates import Entry, Resamples
from experiments.metrics.statistical_tests import wilson
from experiments.report.arms import arms_of
from experiments.report.sections import Section, write_section
from experiments.report.tables import in_terminal, table
from experiments.report.text import lines
from experiments.runs.results_table import Results, Row, read_results, row
from experiments.runs.store import read_object
from experiments.studies.vrtuning.arms import new_adapters
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from mitigation.vrtuning.checkpoint import adapter_hash

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


BASELINE = "baseline"
PERCEPTION, IMAGE_SHARE = "perception_word_for_word", "attention_on_image_at_verdict"
COLUMNS = {
    "image share": {"quantity": IMAGE_SHARE},
    "image share: difference": {"quantity": IMAGE_SHARE, "against": BASELINE},
    "captions": {"quantity": PERCEPTION, "group": "kind=caption"},
    "perception": {"quantity": PERCEPTION},
}
UNSEEN = {"quantity": "harmless_answered", "subset": "over_safety", "group": "tag:combination=unseen"}
TITLE = "What the adapters were trained on, and what they cost"
NOTE = (
    "Rates in percent, with 95% intervals; differences in points. Unseen: harmless requests answered, of template × "
    "thing combinations that no adapter was trained on. Image share: the share of attention on the image, of what the "
    "first token leaves, at the query off which the verdict is read, as the mean over heads and layers. Perception: "
    "questions about the picture answered word for word. Share and perception are the adapter's, without what an arm "
    "adds to it. All adapters are trained with equal steps on equal pictures and questions."
)
Shares = Float[np.ndarray, " case"]


def perception_rows(vlm: "VLM", name: str, *, per_kind: int) -> list[Row]:
    """Return the share of IconWorld's perception questions (test split) answered word for word, in all and by kind.

    Intervals are Wilson's. Without questions there is no row.
    """
    if per_kind == 0:
        return []
    by_kind = perception_accuracy(vlm, "test", per_kind=per_kind)
    right = {kind: round(each["accuracy"] * per_kind) for kind, each in by_kind.items()}
    counts = {f"kind={kind}": (count, per_kind) for kind, count in right.items()}
    rows = []
    for group, (count, n) in {**counts, "": (sum(right.values()), per_kind * len(right))}.items():
        low, high = wilson(count, n) or (None, None)
        rows.append(row(PERCEPTION, arm=name, group=group, value=count / n, low=low, high=high, n=n))
    return rows


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


def compare_shares(samples: Sequence[Sample], before: Shares, after: Shares, *, seed: int, draws: int) -> Entry | None:
    """Return the paired difference of the mean share on the cases that have both; None if no case has both.

    ``from`` and ``to`` are the means before and after.
    """
    both = [at for at in np.argsort([sample.id for sample in samples]) if np.isfinite(before[at] + after[at])]
    if not both:
        return None
    changes, cases = after[both] - before[both], [samples[at] for at in both]
    texts, clusters, tags = zip(*((case.text, case.cluster, case.tags) for case in cases), strict=True)
    resamples = Resamples.of_cases(clusters, texts, tags, draws=draws, seed=seed)
    means = float(before[both].mean()), float(after[both].mean())
    drawn = resamples.drawn(lambda sample: sample.mean(changes))
    return difference(resamples, *means, drawn, [None], len(both)).entry


def share_rows(run: Run, samples: Sequence[Sample], name: str, before: Shares, after: Shares) -> list[Row]:
    """Return the mean share of an adapter and its difference from the model without it, on the cases that have both."""
    entry = compare_shares(samples, before, after, seed=run.seed, draws=run.draws) or {"to": None, "n": 0}
    rows = [row(IMAGE_SHARE, arm=name, value=entry["to"], n=entry["n"], n_of=len(samples))]
    if entry["n"] and name != BASELINE:
        rows.append(row(IMAGE_SHARE, arm=name, against=BASELINE, entry=entry, n_of=len(samples)))
    return rows


def measured(results: Results) -> set[str]:
    """Return the adapters whose side effects are in the results table."""
    return {entry.arm for entry in results.select(quantity=(PERCEPTION, IMAGE_SHARE))}


def measure_side_effects(work: Study, folders: Mapping[str, Path | None], perception: int, attention: int) -> list[Row]:
    """Measure the study's model with the adapter in each folder, or without one if the folder is None.

    The model without an adapter comes first. Shares of attention are compared with its shares, on the same scored cases
    of the run's benchmark. A share that cannot be measured is missing, and the reason is printed.

    Args:
        work: the finished study.
        folders: by name.
        perception: questions of each kind.
        attention: cases; 0 measures no share.
    """
    from mitigation.vrtuning.model import adapted

    run, vlm = work.run, work.vlm
    scored = [sample for sample in run.benchmark.load().samples if sample.subset in SCORED_SUBSETS]
    per_kind, cases = (number if run.limit is None else min(number, run.limit) for number in (perception, attention))
    samples = [sample for sample in limited(scored, cases) if sample.image is not None]
    rows: list[Row] = []
    before: Shares | None = None
    for name, folder in folders.items():
        with nullcontext() if folder is None else adapted(vlm, folder, adapter_hash(folder)):
            rows += perception_rows(vlm, name, per_kind=per_kind)
            if not samples:
                continue
            try:
                shares = image_shares(vlm, samples, max_new_tokens=run.max_new_tokens)
            except UserError as error:  # a model whose attention cannot be recorded is still worth evaluating
                work.console.print(f"{name}: attention on the image was not measured: {error}", markup=False)
                rows.append(row(IMAGE_SHARE, arm=name, n=0, n_of=len(samples)))
                continue
        before = shares if before is None else before
        rows += share_rows(run, samples, name, before, shares)
    return rows


def write_tables(arms: Mapping[str, Any], adapters: Mapping[str, str], work: Study) -> list[RenderableType]:
    """Add the section to the report, and return what to print.

    Args:
        arms: the run's as configured.
        adapters: by name, the content of the reasoning that each was trained on.
        work: the finished study.
    """
    folder, records = work.store.path, []
    results, names = read_results(folder), {arm: new.adapter for arm, new in new_adapters(arms).items()}
    for arm in arms_of(results, read_object(folder / "metrics.json")):
        adapter = names.get(arm, arm if arm == BASELINE else "")
        record = {"arm": arm, "reasoning": adapters.get(adapter, "–"), "unseen": results.get(arm, **UNSEEN) or "–"}
        records.append(record | {name: results.get(adapter, **key) or "–" for name, key in COLUMNS.items()})
    frame, sentences = table(records, title=TITLE), lines("vrtuning", results=results, adapters=adapters, base=BASELINE)
    write_section(folder, "vrtuning", Section(TITLE, sentences, [frame], note=NOTE))
    cards = [folder / "adapters" / name / "adapter" / "README.md" for name in dict.fromkeys(names.values())]
    return [in_terminal(frame), *sentences, *(f"model card: {card}" for card in cards)]
