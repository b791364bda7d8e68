"""``+exp=words_and_picture``: the same cases with the picture, in words, and with neither; and what is seen in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import RenderableType

from experiments.benchmarks.iconworld.perception import names_thing
from experiments.config import Run, digest
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.answer import Answering
from experiments.metrics.findings import RULES
from experiments.report.findings import beside as beside_said
from experiments.report.findings import transplant as transplant_said
from experiments.report.findings.words_and_picture import NOTE, TITLE, sentences
from experiments.report.numbers import MISSING, fixed, fixed_interval, interval_of, percent, percent_interval
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.table import Cell, Column, Narrow, Table, terminal
from experiments.runs.directory import KEPT, read_object
from experiments.runs.launch import sharded
from experiments.runs.records import current, now
from experiments.studies.words_and_picture.analysis import summarise
from experiments.studies.words_and_picture.conditions import (
    CONDITIONS,
    PICTURE,
    POINTING,
    caption_questions,
    in_words,
    thing_of,
)
from experiments.types import Loaded, Sample
from interp.errors import UserError

RESULT, TRANSPLANT, BESIDE = "words_and_picture", "transplant", "beside"
STATUS = {TRANSPLANT: "where the picture gets lost", BESIDE: "the right caption beside the picture"}
CONDITIONS_FILE, CAPTIONS_FILE = f"{RESULT}.jsonl", "captions.jsonl"
CAPTION_TOKENS = 24
DIFFERENCE = f"{PICTURE} − {POINTING}"


@sharded
@dataclass(frozen=True)
class WordsAndPicture:
    """The task, on IconWorld, whose pictures can be said in words.

    Writes the baseline's study (the condition with the picture), words_and_picture.jsonl (a record a case and further
    condition), captions.jsonl, words_and_picture.json, and a section of the report.

    ``transplant`` are decoder layers (from 0) after which the noun's state in words is put onto "this" in the run with
    the picture, and after which is read what is there of thing and truth; None leaves that out. ``beside`` asks why the
    right caption suffices alone and hardly helps beside the picture. Each is kept under its name in
    words_and_picture.json, with a section and a figure. ``cases`` is how many scored cases they look at, whole pairs
    spread over the benchmark (None: all).
    """

    transplant: list[int] | None = None
    beside: bool = False
    cases: int | None = None

    def __post_init__(self) -> None:
        """Checks the layers and the number of cases.

        Raises:
            UserError: no layers, one twice, or one below 0; or fewer than 2 cases.
        """
        if self.cases is not None and self.cases < 2:
            raise UserError(f"task.cases={self.cases}: must be at least 2, a pair; or null for all")
        if self.transplant is not None and (
            not self.transplant or len(set(self.transplant)) < len(self.transplant) or min(self.transplant) < 0
        ):
            raise UserError(
                f"task.transplant={list(self.transplant)}: must be decoder layers from 0, each once; or null"
            )

    def __call__(self, run: Run) -> None:
        """Answers what is missing, and prints what may be said of the model.

        Raises:
            UserError: the benchmark is not IconWorld with its question, or the model cannot be used.
        """
        if run.benchmark.kind != "yes_no":
            raise UserError(
                f"benchmark={run.benchmark.name}: asks for answers in words; the study compares verdicts; "
                "choose benchmark=iconworld"
            )
        if self.transplant is not None or self.beside:
            _ = run.weights  # what looks inside needs them here
        with study.opened(study.baseline_only(run), check=_known) as work:
            if self.transplant is not None:
                from experiments.studies.words_and_picture.transplant import check_layers

                check_layers(work.vlm, self.transplant)
            work.answer_all()
            # All processes of a launch ask the conditions; only what follows is rank 0's.
            missing = "words and picture were not compared"
            analyses = [Analysis(RESULT, missing, self._compared, together=True)]
            if self.transplant is not None:
                analyses.append(
                    Analysis(TRANSPLANT, "where the picture gets lost was not looked at", self._transplanted)
                )
            if self.beside:
                analyses.append(Analysis(BESIDE, "nothing was put beside the right caption", self._beside))
            work.conclude(analyses)

    def _compared(self, work: study.Study) -> list[RenderableType]:
        result = self.compare(work)
        tables = [conditions_table(result), parts_table(result)]
        folder = work.store.path
        if work.store.launch.first:
            write_section(folder, RESULT, Section(TITLE, result["sentences"], tables, note=NOTE))
        return [*map(terminal, tables), *result["sentences"], f"numbers: {folder / f'{RESULT}.json'}"]

    def compare(self, work: study.Study) -> dict[str, Any]:
        """The contents of words_and_picture.json, of a study that holds the baseline's answers."""
        run, store = work.run, work.store
        baseline = run.arms["baseline"]
        for name, asked in in_words(work.samples).items():
            work.answering.answer(name, baseline, asked, file=CONDITIONS_FILE, label=CONDITIONS[name])
        longer = replace(run, protocol="generate", max_new_tokens=max(run.max_new_tokens, CAPTION_TOKENS))
        Answering(longer, work.vlm, store, work.console).answer(
            "caption", baseline, caption_questions(work.samples), file=CAPTIONS_FILE,
            label="captions",
        )  # fmt: skip
        things = {sample.id: thing_of(sample) for sample in work.samples if sample.subset != "control"}
        own = [{**record, "arm": PICTURE} for record in work.records() if record["case"] in things]
        others = [r for r in current(store.records(CONDITIONS_FILE)) if r["case"] in things and r["arm"] in CONDITIONS]
        said_of = {record["case"]: record["response"] for record in current(store.records(CAPTIONS_FILE))}
        captions = {
            case: names_thing(thing, said_of[case]) for case, thing in things.items() if said_of.get(case) is not None
        }
        result = summarise([*own, *others], captions, seed=run.seed, draws=run.draws)
        result["sentences"] = sentences(result, where=f"{work.model_title} on {run.benchmark.name}")
        result["finished"] = now()
        before = read_object(store.path / f"{RESULT}.json")
        store.write_json(f"{RESULT}.json", result | {name: before[name] for name in STATUS if name in before})
        return result

    def _transplanted(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.words_and_picture import transplant_shown as shown
        from experiments.studies.words_and_picture.transplant import examine

        layers = self.transplant
        assert layers is not None
        looked_at = spread(work.samples, self.cases)
        result = _examined(
            work, TRANSPLANT, looked_at, layers, partial(examine, layers=layers), transplant_said.sentences
        )
        figure = SectionFigure(shown.draw(result), shown.ALT, shown.CAPTION)
        title, note = transplant_said.TITLE, transplant_said.NOTE
        return _shown(work, TRANSPLANT, Section(title, result["sentences"], shown.tables(result), note=note), figure)

    def _beside(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.words_and_picture import beside_shown as shown
        from experiments.studies.words_and_picture.beside import examine

        result = _examined(work, BESIDE, spread(work.samples, self.cases), None, examine, beside_said.sentences)
        figure = SectionFigure(shown.draw(result), shown.ALT, shown.CAPTION)
        title, note = beside_said.TITLE, beside_said.NOTE
        return _shown(work, BESIDE, Section(title, result["sentences"], [shown.table(result)], note=note), figure)


def spread(samples: Sequence[Sample], count: int | None) -> list[Sample]:
    """At most ``count`` of the scored cases, whole pairs as evenly over the benchmark as whole numbers allow."""
    scored = [sample for sample in samples if sample.subset != "control"]
    units = list(dict.fromkeys(sample.pair or sample.id for sample in scored))
    if count is None or count >= len(scored):
        return scored
    most = max(1, count * len(units) // len(scored))
    kept = {units[at * len(units) // most] for at in range(most)}
    return [sample for sample in scored if (sample.pair or sample.id) in kept]


def _examined(
    work: study.Study,
    name: str,
    samples: Sequence[Sample],
    option: Any,
    examine: Callable[..., dict[str, Any]],
    said: Callable[[Mapping[str, Any]], list[str]],
) -> dict[str, Any]:
    """Adds what ``examine`` finds to words_and_picture.json; what is there of the same cases and settings is kept."""
    from interp.speed.vision_cache import FeatureCache, shared_features

    run, store, vlm = work.run, work.store, work.vlm
    cases = [work.loaded.manifest, sorted(sample.id for sample in samples)]
    settings = digest([RULES, option, cases, run.seed, run.draws, vlm.name, vlm.revision, str(vlm.dtype)])
    path = store.path / f"{RESULT}.json"
    kept: dict[str, Any] = read_object(path).get(name) or {}
    if kept.get("settings") == settings:
        return kept
    with (
        shared_features(vlm, FeatureCache(run.feature_cache_mib)),
        work.answering.batching(name),
        vlm.batches.resumable(store.path / KEPT / name, of=settings),
        work.console.status(STATUS[name]),
    ):
        result = {"settings": settings, **examine(vlm, samples, seed=run.seed, draws=run.draws)}
    result |= {"sentences": said(result), "finished": now()}
    store.write_json(path.name, read_object(path) | {name: result})
    return result


def _shown(work: study.Study, name: str, section: Section, figure: SectionFigure) -> list[RenderableType]:
    """Adds the section to the report, with its figure as ``figures/<name>.png`` as well; what to print."""
    write_section(work.store.path, name, section, {name: figure})
    picture = work.store.path / "figures" / f"{name}.png"
    figure.figure.savefig(picture, dpi=96)
    return [*map(terminal, section.tables), *section.sentences, f"figure: {picture}"]


def _known(loaded: Loaded) -> None:
    """Refuses cases whose picture is not known, before any weights."""
    for sample in loaded.samples:
        thing_of(sample)


def conditions_table(result: Mapping[str, Any]) -> Table:
    """A row a condition, over all cases."""
    block, records = result["parts"]["all"], []
    for name, words in result["conditions"].items():
        arm = block["arms"][name]
        delta = (block["comparisons"].get(name) or {}).get("delta") or {}
        records.append({
            "asked": words,
            "AUROC": _auroc(arm),
            "minus pointing": _difference(delta.get("auroc")),
            "unsafe right": Cell(percent(arm["accuracy"]["unsafe"]), percent_interval(arm["intervals"]["unsafe"])),
            "over-safety right": Cell(
                percent(arm["accuracy"]["over_safety"]), percent_interval(arm["intervals"]["over_safety"])
            ),
        })  # fmt: skip
    n = block["arms"][PICTURE]["n"]
    return Table.of(f"One case in four ways ({n['unsafe']} unsafe, {n['over_safety']} safe cases)", records)


def parts_table(result: Mapping[str, Any]) -> Table:
    """A row a part: AUROC of every condition, the paired difference, captions, and what the rule says."""
    answers = {one["about"]: one["answer"] for one in result["findings"]}
    records = []
    for name, block in result["parts"].items():
        seen = block["captions"]
        n = block["arms"][PICTURE]["n"]
        records.append({
            "part": name,
            "cases": f"{n['unsafe']} + {n['over_safety']}",
            "captions right": Cell(percent(seen["rate"]), percent_interval(seen["interval"])),
            **{condition: _auroc(block["arms"][condition]) for condition in result["conditions"]},
            DIFFERENCE: _difference(block["comparisons"][PICTURE]["delta"]["auroc"]),
            "blind": answers[name],
        })  # fmt: skip
    columns = [
        Column("part", "left", fold=9),
        Column("cases", narrow=Narrow.NOTHING),
        Column("captions right", short="captions\nright", narrow=Narrow.VALUE),
        *(Column(one, narrow=Narrow.TERSE if one in (PICTURE, POINTING) else Narrow.VALUE) for one in CONDITIONS),
        Column(DIFFERENCE, short="picture −\npointing", narrow=Narrow.TERSE),
        Column("blind", "left"),
    ]
    return Table.of("AUROC by what the training has seen of a case (unsafe + safe cases)", records, columns=columns)


def _auroc(arm: Mapping[str, Any]) -> Cell:
    return Cell(fixed(arm["auroc"], 3), fixed_interval(arm["intervals"]["auroc"]))


def _difference(entry: Mapping[str, Any] | None) -> Cell:
    """With the wider of its intervals."""
    if entry is None:
        return Cell(MISSING)
    return Cell(fixed(entry["value"], 3, sign=True), fixed_interval(interval_of(entry), 3))
