"""The side effect of an adapter: does the model still perceive pictures?

It is measured on the model with and without the adapter. The rows of the results table name the adapter as their arm.
The report has them next to what each arm's adapter was trained on.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from experiments.benchmarks.iconworld.perception import KINDS, perception_questions
from experiments.evaluation.study import Study
from experiments.metrics.statistical_tests import wilson
from experiments.report.arms import arms_of
from experiments.report.sections import Section, write_section
from experiments.report.tables import in_terminal, table
from experiments.report.text import lines
from experiments.runs.results_table import Results, Row, read_results, row
from experiments.runs.store import read_object
from mitigation.vrtuning.checkpoint import adapter_hash
from mitigation.vrtuning.method import new_adapters

if TYPE_CHECKING:
    from interp.vlm import VLM


BASELINE = "baseline"
PERCEPTION = "perception_word_for_word"
LONGEST_ANSWER = 20  # tokens; a resolved sentence is the longest
COLUMNS = {
    "captions": {"quantity": PERCEPTION, "group": "kind=caption"},
    "perception": {"quantity": PERCEPTION},
}
UNSEEN = {"quantity": "harmless_answered", "subset": "over_safety", "group": "tag:combination=unseen"}
TITLE = "What the adapters were trained on, and what they cost"
NOTE = (
    "Rates in percent, with 95% intervals. Unseen: harmless requests answered, of template × thing combinations that "
    "no adapter was trained on. Perception: questions about the picture answered word for word, by the adapter without "
    "what an arm adds to it. All adapters are trained with equal steps on equal pictures and questions."
)


def perception_rows(vlm: "VLM", name: str, *, per_kind: int) -> list[Row]:
    """Return the share of IconWorld's perception questions (test split) answered word for word, in all and by kind.

    Intervals are Wilson's. Without questions there is no row.
    """
    if per_kind == 0:
        return []
    right = right_answers(vlm, per_kind)
    counts = {f"kind={kind}": (count, per_kind) for kind, count in right.items()}
    rows = []
    for group, (count, n) in {**counts, "": (sum(right.values()), per_kind * len(right))}.items():
        low, high = wilson(count, n) or (None, None)
        rows.append(row(PERCEPTION, arm=name, group=group, value=count / n, low=low, high=high, n=n))
    return rows


def right_answers(vlm: "VLM", per_kind: int, kinds: Sequence[str] = KINDS) -> dict[str, int]:
    """Return by kind how many of ``per_kind`` perception questions the model answers word for word."""
    from interp.vlm import Prompt

    questions = [each for each in perception_questions("test", per_kind=per_kind) if each.kind in kinds]
    prompts = [Prompt(each.question, each.scene.render(), key=each.id) for each in questions]
    texts = vlm.batches.gathered(prompts, lambda batch: vlm.generate(batch, max_new_tokens=LONGEST_ANSWER).texts)
    right = dict.fromkeys(kinds, 0)
    for each, text in zip(questions, texts, strict=True):
        right[each.kind] += text == each.answer
    return right


def measured(results: Results) -> set[str]:
    """Return the adapters whose side effects are in the results table."""
    return {entry.arm for entry in results.select(quantity=PERCEPTION)}


def measure_side_effects(work: Study, folders: Mapping[str, Path | None], perception: int) -> list[Row]:
    """Measure the study's model with the adapter in each folder, or without one if the folder is None.

    Args:
        work: the finished study.
        folders: by name.
        perception: questions of each kind.
    """
    from mitigation.vrtuning.model import adapted

    per_kind = perception if work.run.limit is None else min(perception, work.run.limit)
    rows: list[Row] = []
    for name, folder in folders.items():
        with nullcontext() if folder is None else adapted(work.vlm, folder, adapter_hash(folder)):
            rows += perception_rows(work.vlm, name, per_kind=per_kind)
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
