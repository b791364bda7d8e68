"""``task=vrtuning``: trains this run's adapters, evaluates them as arms of the study, and measures what they cost.

The run's directory has the files of a study, and ``training.jsonl``: the training data of each adapter.
``adapters/<name>/`` has ``adapter/`` with its model card, and ``training.json`` with the losses. Side effects are rows
of ``results.csv`` and a section of the report. An interrupted run goes on where it was: training from its last resume
point, the study case by case. Under ``accelerate launch`` all processes train and answer their share of the study, and
the first measures.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import Progress

from experiments.benchmarks.iconworld.perception import KINDS, perception_questions
from experiments.benchmarks.iconworld.traces import Traces
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.study import Study
from experiments.evaluation.validated_run import ValidatedRun, validate
from experiments.metrics.bootstrap import wilson
from experiments.report.arms import arms_of
from experiments.report.sections import Analysis, Section, write_section
from experiments.report.tables import in_terminal, lines, table
from experiments.runs.launch import sharded
from experiments.runs.results_table import Results, Row, read_results, row, write_results
from experiments.runs.store import RunStore, read_object
from experiments.studies.questions import check_sizes
from experiments.studies.vrtuning.sources import build_data, exclude_tested
from experiments.types import Loaded
from interp.errors import UserError
from mitigation.vrtuning.checkpoint import adapter_hash, folder_of
from mitigation.vrtuning.data import ORDERS, ROW_HASH, Data
from mitigation.vrtuning.method import new_adapters
from mitigation.vrtuning.settings import Settings

if TYPE_CHECKING:
    from interp.vlm import VLM

TRAINING = "training.jsonl"
SKIPPED_LISTED = 100  # rows left out of the training data that are listed by line and reason


@sharded
@dataclass(frozen=True)
class VRTuningStudy:
    """The task with its options.

    ``data`` is a source of :mod:`experiments.studies.vrtuning.sources`. ``adapters`` maps the name of each adapter to
    the content of its rows' reasoning. All are trained with the same ``settings``. ``order`` puts the verdict ``first``
    or ``last``. ``perception`` questions of each kind are asked before and after (0: not at all).
    """

    data: Any
    settings: Settings
    adapters: dict[str, Any]
    order: str = "first"
    perception: int = 200

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError(f"task.order={self.order!r}: must be one of {', '.join(ORDERS)}")
        if not self.adapters:
            raise UserError("task.adapters is empty: name at least one adapter, as in task.adapters.vrtuning=reasoning")
        check_sizes(self, perception=0)
        if bad := [name for name in self.adapters if not name.replace("_", "").isalnum()]:
            raise UserError(f"task.adapters: {bad[0]!r} is no name for a folder; use only letters, digits and _")

    def __call__(self, run: Run) -> None:
        """Train, evaluate, measure, and print the paths of all files."""
        check_adapters(self, run)
        given = None if isinstance(self.data, Traces) else self.data.cases()
        validated = validate(run)
        cases = None if given is None else exclude_tested(self.data, given, validated.complete.samples)
        rows = {"rows": given.manifest} if given is not None and given.manifest else {}
        self._run(run, validated, {**rows, **dataclasses.asdict(self), "data": repr(self.data)}, cases)

    def _run(self, run: Run, validated: ValidatedRun, described: Mapping[str, Any], cases: Loaded | None) -> None:
        """Run the study. ``described`` says what the adapters learn from, and is part of the run's identity."""
        run = replace(run, config=run.config | {"training": described})
        prepare = partial(self._prepare, run, cases)
        study.run(run, validated=validated, prepare=prepare, after=self.analyses(run))

    def analyses(self, run: Run) -> list[Analysis]:
        """Return what comes after the study of ``run`` as configured: side effects, and the tables."""
        tables = partial(write_tables, run.arms, self.adapters)
        return [
            Analysis("side_effects", "the adapters' side effects were not measured", self._measure_all, detail=True),
            Analysis("vrtuning", "the tables were not written", tables, detail=True),
        ]

    def _prepare(self, run: Run, cases: Loaded | None, store: RunStore) -> study.Prepared:
        """Return the run's arms with the adapters trained, on ``cases`` if the source is a table of one's own."""
        self._train_all(run, store, store.launch.console(), cases)
        folders = store.path / "adapters"
        trained = {arm: new.trained(folders / new.adapter / "adapter") for arm, new in new_adapters(run.arms).items()}
        return {**run.arms, **trained}, {}

    def _train_all(self, run: Run, store: RunStore, console: Console, cases: Loaded | None) -> None:
        written = {record["adapter"] for record in store.records(TRAINING)}
        datasets = {name: self.trained_on(name, cases) for name in self.adapters}
        for name, data in datasets.items():
            console.print(f"{name}: {data.summary()}", highlight=False, markup=False)
            if name not in written and store.launch.first:
                store.append([_record(name, str(self.adapters[name]), self.order, data)], TRAINING)
        store.wait()
        for name, data in datasets.items():
            self._train(run, name, data, store.path / "adapters" / name, console)

    def settings_of(self, name: str) -> Settings:
        """Return the settings of an adapter's training; here all have the same."""
        return self.settings

    def trained_on(self, name: str, cases: Loaded | None) -> Data:
        """Return one adapter's dataset; ``cases`` are the rows of a user's table."""
        content, preferences = self.adapters[name], self.settings.trainer == "dpo"
        return build_data(self.data, content, self.order, preferences=preferences, cases=cases)

    def _train(self, run: Run, name: str, data: Data, out: Path, console: Console) -> None:
        from mitigation.vrtuning.train import train

        described = f"{type(self.data).__name__}, {self.adapters[name]}, verdict {self.order}"
        with Progress(console=console) as progress:
            settings = self.settings_of(name)
            bar = progress.add_task(f"training {name}", total=settings.steps)

            def report(step: int, steps: int, loss: float) -> None:
                progress.update(bar, completed=step, total=steps, description=f"training {name} (loss {loss:.3f})")

            done = train(run.weights, data.dataset, settings, out, data=described, report=report)
        resumed = f", continued from step {done.resumed_at}" if 0 < done.resumed_at < done.steps else ""
        text = f"{done.steps} steps{resumed}, {done.seconds:.0f} s, last loss {done.losses[-1][1]:.3f}"
        console.print(f"{name}: {text}: {done.adapter}", highlight=False, markup=False, soft_wrap=True)

    def _measure_all(self, work: Study) -> list[str]:
        """Add the side effects to the results table, if they are not in it yet."""
        path = work.store.path
        folders: dict[str, Path | None] = {BASELINE: None}
        folders |= {name: folder_of(path / "adapters" / name) for name in self.adapters}
        if measured(read_results(path)) >= folders.keys() or not self.perception:
            return []
        with work.console.status("what the model sees"), work.answering.batching("side effects"):
            rows = measure_side_effects(work, folders, self.perception)
        write_results(path, rows)
        return []


def check_adapters(task: VRTuningStudy, run: Run) -> None:
    """Check the adapters against the arms that they become.

    Raises:
        UserError: the model has no weights here, or an arm does not fit its adapter.
    """
    _ = run.weights
    for arm, method in new_adapters(run.arms).items():
        if method.adapter not in task.adapters:
            trained = ", ".join(task.adapters)
            raise UserError(f"arm {arm}: this run trains no adapter {method.adapter!r}; it trains {trained}")
        if method.answer != task.order:
            raise UserError(
                f"arm {arm}: answer={method.answer!r}, but the adapters learn the verdict {task.order}; set both alike"
            )


def _record(name: str, content: str, order: str, data: Data) -> Mapping[str, Any]:
    """Return a line of training.jsonl: an adapter's training data, with the first example of each kind in words."""
    examples: dict[str, Any] = {}
    for example in data.dataset.remove_columns(["images", ROW_HASH]).select(range(min(200, len(data.dataset)))):
        examples.setdefault(example["kind"], {key: value for key, value in example.items() if key != "kind"})
    return {
        "adapter": name,
        "content": content,
        "order": order,
        "rows": data.summary(),
        "skipped": [skipped._asdict() for skipped in data.skipped[:SKIPPED_LISTED]],
        "examples": examples,
    }


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
