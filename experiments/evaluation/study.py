"""The study: the same cases under every arm, recorded as they are answered, then scored and compared.

Records → metrics.json, table and sentences, by what the benchmark's answers are read for. Reads no model.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, RenderableType

from experiments.config import Run
from experiments.evaluation import answer, fit
from experiments.evaluation.answer import PREDICTIONS, Answering, batches
from experiments.evaluation.batching import halved
from experiments.metrics.refusal import results as refusal
from experiments.metrics.refusal.correction import corrected
from experiments.metrics.yes_no import results as metrics
from experiments.report import refusal as refusal_terminal
from experiments.report import terminal
from experiments.report.build import build
from experiments.report.findings import refusal as refusal_words
from experiments.report.findings import yes_no as yes_no_words
from experiments.report.run_files import write_thumbnails
from experiments.runs import records
from experiments.runs.directory import RunStore, open_run
from experiments.runs.launch import Launch, sharded, whole_weights
from experiments.runs.provenance import describe
from experiments.runs.responses import Responses
from experiments.types import Kind, Loaded, Sample, Status
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from mitigation.method import TrainableMethod

if TYPE_CHECKING:
    from interp.vlm import VLM
    from mitigation.method import Method

__all__ = ["PREDICTIONS", "Study", "batches", "limited", "load_cases", "run"]


NO_VERDICT_TO_SHIFT = "it is a constant on the margin between Yes and No, which an open answer does not have"


@dataclass(frozen=True)
class Rules:
    """By what rules answers are scored: the same for a run and for its verdicts judged again."""

    kind: Kind
    seed: int
    draws: int
    unsafe_margin: float
    count_empty_as_refusal: bool
    judge: str  # name
    judge_card: str | None  # path, to correct refusal rates for that judge's error

    @classmethod
    def of(cls, run: Run, kind: Kind | None = None, judge: str | None = None) -> "Rules":
        """Those of a run's configuration."""
        return cls(
            kind or run.benchmark.kind,
            run.seed,
            run.draws,
            run.unsafe_margin,
            run.count_empty_as_refusal,
            judge or run.judge.name,
            run.judge_card,
        )


def evaluate(
    rules: Rules,
    predictions: Sequence[Mapping[str, Any]],
    *,
    study: str,
    where: str,
    caveat: str = "",
    missing: Mapping[str, str] = MappingProxyType({}),
    baseline: str = "baseline",
    control: str = "calibrated_shift",
) -> dict[str, Any]:
    """The contents of metrics.json. ``study`` is the arm under study; ``missing`` arms cannot enter (reasons)."""
    frame = pd.DataFrame(predictions)
    if rules.kind == "refusal":
        result = refusal.evaluate(
            frame,
            seed=rules.seed,
            draws=rules.draws,
            baseline=baseline,
            study=None if study in missing else study,
            empty_as_refusal=rules.count_empty_as_refusal,
            safety_margin=rules.unsafe_margin,
            not_applicable=missing,
        )
        worded = refusal_words.worded(result, where=where, caveat=caveat)
        return worded if rules.judge_card is None else _beside(worded, rules.judge, rules.judge_card)
    result = metrics.evaluate(
        frame,
        seed=rules.seed,
        draws=rules.draws,
        baseline=baseline,
        control=control,
        study=study,
        unsafe_margin=rules.unsafe_margin,
    )
    return yes_no_words.worded(result, where=where, caveat=caveat)


def _beside(result: dict[str, Any], judge: str, card: str) -> dict[str, Any]:
    """The raw rates with the corrected ones beside."""
    found = corrected(result, Path(card), judge)
    return result | {"corrected": found, "caveats": [*result["caveats"], *refusal_words.correction(found)]}


def shown(result: Mapping[str, Any]) -> RenderableType:
    """The result as a terminal shows it."""
    return refusal_terminal.results(result) if result.get("kind") == "refusal" else terminal.results(result)


def not_applicable(run: Run) -> dict[str, str]:
    """Arms that cannot enter a refusal benchmark, or by this protocol, and why.

    Raises:
        UserError: the judge reads other answers, or nothing here can be scored.
    """
    answer.check(run)
    if run.judge.kind != run.benchmark.kind:
        raise UserError(
            f"judge {run.judge.name} reads {run.judge.kind} answers and {run.benchmark.name} asks for "
            f"{run.benchmark.kind}; leave judge out, or choose one of that kind in conf/judge"
        )
    if run.benchmark.kind == "yes_no":
        return answer.not_applicable(run)
    return {arm: NO_VERDICT_TO_SHIFT for arm, method in run.arms.items() if getattr(method, "yes_no_only", False)}


def shortfall(loaded: Loaded) -> str:
    """How many of a benchmark's cases cannot run here, and why, in a sentence; "" where all can."""
    if not loaded.missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in loaded.missing.values())
    listed = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common())
    total = len(loaded.samples) + len(loaded.missing)
    return f"{len(loaded.samples):,} of the benchmark's {total:,} cases can run here ({listed})."


def caveat(run: Run) -> str:
    """What a reader must know before the numbers: the organism understands IconWorld alone."""
    path = getattr(run.model, "path", "")
    if path.startswith("organism:") and run.benchmark.name != "iconworld":
        return (
            "The model is the bundled organism, which knows IconWorld's words and pictures alone: on "
            f"{run.benchmark.name} its answers mean nothing, and this run shows only that every step works."
        )
    return ""


DEVELOPMENT = "development.jsonl"
After = Callable[[Path], Iterable[RenderableType]]
SUBSETS_BY_TURNS = ("over_safety", "typical", "attack", "control", "benign", "contrast")


@sharded
def run(run: Run, *, after: After | None = None) -> None:
    """Evaluates all arms, writes the record, the metrics and the report, and prints the summary.

    Where several processes were launched they share the cases, and the first does what comes after. ``after`` adds to
    the run's directory and says what to print of it; only then does the run count as finished.
    """
    launch = Launch.current()
    console = launch.console()
    not_applicable = check_arms(run)
    complete = load_cases(run, console)
    loaded = complete._replace(samples=limited(complete.samples, run.limit))
    for arm, method in run.arms.items():
        if isinstance(method, Responses):
            console.print(f"{arm}: {method.check(loaded.samples)}", highlight=False, markup=False)
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        console.print(_plan(run, loaded, store), highlight=False, soft_wrap=True, markup=False)
        vlm = connected(run)
        environment = describe(run, vlm, loaded)
        store.write_json("environment.json", environment)
        study = Study(run, vlm, store, loaded, console, shortfall(complete), not_applicable)
        study.answer_all()
        if launch.first:
            looked = study.look() if run.attention else []
            study.conclude(environment, after)
            for sentence in looked:
                console.print(sentence, highlight=False, markup=False)
    launch.wait()  # whoever goes on finds the run finished


def check_arms(run: Run) -> dict[str, str]:
    """Arms that cannot enter this benchmark, with the reason; UserError for what no weights are needed to refuse."""
    excluded = not_applicable(run)
    if hasattr(run.judge, "check"):
        run.judge.check()
    for arm, method in run.arms.items():
        if isinstance(method, fit.Fitted) and arm not in excluded:
            fit.arms_needed(method, run.arm, run.arms)
    fit.check({arm: method for arm, method in run.arms.items() if arm not in excluded}, run.benchmark)
    if not isinstance(run.model, ModelConfig):
        if (size := Launch.current().size) > 1:
            raise UserError(
                f"WORLD_SIZE={size}: model {run.model.name} answers over an API, which one process asks with many "
                "requests at a time; start it with python -m experiments.run"
            )
        from experiments.api.model import check_methods

        check_methods({arm: method for arm, method in run.arms.items() if arm not in excluded})
        run.model.check()
    return excluded


def connected(run: Run) -> Any:
    """The model, a VLM or what stands for one over its API; None where every arm brings its responses."""
    if all(isinstance(method, Responses) for method in run.arms.values()):
        return None
    if isinstance(run.model, ModelConfig):
        from interp.vlm import load  # torch and transformers: only when everything else is in order

        with whole_weights():
            return load(Launch.current().placed(run.model))
    return run.model.connect(cache=Path(run.output_root) / "api_cache")


def limited(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """The first ``limit`` cases with the subsets taken by turns, over-safety first, in the benchmark's own order."""
    if limit is None or limit >= len(samples):
        return list(samples)
    queues = [[sample for sample in samples if sample.subset == subset] for subset in SUBSETS_BY_TURNS]
    turns = [queue[index] for index in range(max(map(len, queues))) for queue in queues if index < len(queue)]
    chosen = {sample.id for sample in turns[:limit]}
    return [sample for sample in samples if sample.id in chosen]


def load_cases(run: Run, console: Console) -> Loaded:
    """The benchmark's cases; says what cannot run here. UserError where none can."""
    loaded = run.benchmark.load()
    if not loaded.samples:
        raise UserError(f"benchmark {run.benchmark.name} has no case that can run here; look at benchmark.root")
    if loaded.missing:
        console.print(f"[yellow]{shortfall(loaded)} Their ids are in environment.json.[/yellow]", highlight=False)
    return loaded


@dataclass
class Study:
    """One run at work: model (None where every arm brings its responses), store and cases."""

    run: Run
    vlm: "VLM | None"
    store: RunStore
    loaded: Loaded
    console: Console
    shortfall: str = ""
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._answering = Answering(self.run, self.vlm, self.store, self.console)
        self._learned: dict[str, Method] = {}

    def answer_all(self) -> None:
        """Every arm on every case, skipping what is recorded; the baseline first, since shifts are fitted on it."""
        for arm, method in self.run.arms.items():
            if arm in self.not_applicable:
                self.console.print(f"{arm} does not enter: {self.not_applicable[arm]}", highlight=False, markup=False)
            elif isinstance(method, fit.Fitted):
                for fold, shift in self._fitted_shifts(method).items():
                    members = [s for s in self.loaded.samples if fold in (None, fit.fold_of(s.cluster))]
                    label = f"{arm}{'' if fold is None else f' {fold}'}"
                    self._answering.answer(arm, shift, members, self.loaded.manifest, label=label)
            else:
                self._answering.answer(arm, self._ready(arm), self.loaded.samples, self.loaded.manifest)

    def _ready(self, arm: str) -> "Method":
        """The arm's method as it answers: what has to learn has learned on the development split."""
        method = self.run.arms[arm]
        if not isinstance(method, TrainableMethod):
            return method
        if arm not in self._learned:
            development = self.run.benchmark.development()
            assert development is not None  # checked before any weights
            assert self.vlm is not None
            samples = limited(development.samples, self.run.limit)
            out = self.store.path / fit.FOLDER / f"{arm}.safetensors"
            with self.console.status(f"{arm} learns from {len(samples)} cases of the development split"):
                self._learned[arm] = fit.learned(arm, method, self.vlm, samples, out, self.store.launch)
        return self._learned[arm]

    def _fitted_shifts(self, method: fit.Fitted) -> "Mapping[int | None, Method]":
        """One shift from the development split, or one a fold where the benchmark has none."""
        development = self.run.benchmark.development()
        if development is None:
            return fit.cross_fitted(method, self.store.records(PREDICTIONS), study=self.run.arm)
        samples = limited(development.samples, self.run.limit)
        for arm in fit.arms_needed(method, self.run.arm, self.run.arms):
            label = f"{arm}, development split"
            self._answering.answer(arm, self._ready(arm), samples, development.manifest, file=DEVELOPMENT, label=label)
        return {None: fit.fitted(method, self.store.records(DEVELOPMENT), study=self.run.arm)}

    def look(self) -> list[str]:
        """Writes where the attention of the baseline's failures went, and of single cases; what was found, in words."""
        if not isinstance(self.run.model, ModelConfig) or self.vlm is None:
            return ["attention was not analysed: it is that of a model whose weights are here"]
        try:
            with self.console.status("attention of failures and matched successes"):
                found = halved(self.run.batch_size, partial(self._look_at_failures, self.vlm))
                halved(self.run.batch_size, partial(self._look_at_cases, self.vlm))
        except UserError as error:  # the study is worth keeping also where its attention cannot be looked at
            return [f"attention was not analysed: {error}"]
        return found

    def _look_at_failures(self, vlm: "VLM", batch_size: int) -> list[str]:
        from experiments.studies.attention.analysis import analyse_failures

        if self.run.benchmark.kind != "yes_no":
            return ["failures and successes were not compared by attention: that is done for yes/no verdicts"]
        result = analyse_failures(
            vlm,
            self.loaded.samples,
            self._current_records(),
            self.store.path,
            seed=self.run.seed,
            draws=self.run.draws,
            batch_size=batch_size,
            max_new_tokens=self.run.max_new_tokens,
            captum=self.run.attribution == "captum",
        )
        return list(result["sentences"])

    def _look_at_cases(self, vlm: "VLM", batch_size: int) -> None:
        """Attention of single cases under the baseline and the arm under study, for the report."""
        from experiments.evaluation.attention_log import cases_to_show, record_cases

        alike = {arm: self.run.arms[arm] for arm in ("baseline", self.run.arm) if arm not in self.not_applicable}
        arms = {arm: self._ready(arm) for arm, m in alike.items() if not isinstance(m, Responses | fit.Fitted)}
        samples = cases_to_show(
            self.loaded.samples,
            self._current_records(),
            studied=self.run.arm,
            reference="baseline",
            limit=self.run.attention_cases,
        )
        if arms and samples:
            sizes = {"batch_size": batch_size, "max_new_tokens": self.run.max_new_tokens}
            record_cases(vlm, arms, samples, self.store.path, **sizes)

    def conclude(self, environment: Mapping[str, Any], after: After | None = None) -> None:
        """Metrics, thumbnails, report, what ``after`` adds, table and sentences.

        The run counts as finished unless requests never got through: those are asked again by the same command.
        """
        current = self._current_records()
        result = evaluate(
            Rules.of(self.run),
            current,
            study=self.run.arm,
            where=f"{self.run.model.name if self.vlm is None else self.vlm.name} on {self.run.benchmark.name}",
            caveat=" ".join(filter(None, (caveat(self.run), self.shortfall))),
            missing=self.not_applicable,
        )
        self.store.write_json("metrics.json", result)
        write_thumbnails(self.store.path, self.loaded.samples)
        lost = sum(record["status"] == Status.TRANSPORT_FAILED for record in current if not self._is_external(record))
        finished = {} if lost else {"finished": records.now()}
        skips = self._answering.skips()
        reported = sorted(getattr(self.vlm, "reported", ()))  # what an API called the model that answered
        more = finished | ({"reported": reported} if reported else {}) | ({"skips": skips} if skips else {})
        self.store.write_json("environment.json", {**environment, **more, **self._answering.efficiency()})
        page = build(self.store.path)
        added = [] if after is None else list(after(self.store.path))
        if not lost:
            self.store.finish()
        self.console.print(shown(result))
        for sentence in [*_savings(skips), *self._answering.shared()]:
            self.console.print(sentence, highlight=False, markup=False)
        self.console.print(f"report: {page}", highlight=False, soft_wrap=True)
        if lost:
            total = f"{lost} of {len(current)} requests never got through"
            self.console.print(f"{total}; run the same command again to ask them once more", highlight=False)
        for line in added:
            self.console.print(line, highlight=False, soft_wrap=isinstance(line, str))

    def _is_external(self, record: Mapping[str, Any]) -> bool:
        return isinstance(self.run.arms.get(record["arm"]), Responses)

    def _current_records(self) -> list[dict[str, Any]]:
        """The records of this run's arms and cases; a later record of a case and arm replaces an earlier one."""
        cases = {sample.id for sample in self.loaded.samples}
        here = (r for r in self.store.records(PREDICTIONS) if r["arm"] in self.run.arms and r["case"] in cases)
        return records.current(here)


def _savings(skips: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What arms with a lazy second branch did not have to compute, in sentences."""
    found = []
    for arm, counts in skips.items():
        steps = f"{counts['skipped']} of {counts['steps']} steps"
        prefills = f"{counts['skipped_prefills']} of {counts['prefills'] + counts['skipped_prefills']} prompts"
        found.append(f"{arm}: the second branch was skipped on {steps}, and its prefill altogether for {prefills}.")
    return found


def _plan(run: Run, loaded: Loaded, store: RunStore) -> str:
    """What is about to happen, before the weights load: where, on what, and every arm's settings."""
    lines = [
        f"{'continuing' if store.resumed else 'run'} {store.path}",
        f"{run.model.name} on {len(loaded.samples)} cases of {run.benchmark.name}",
        *(f"  {arm}: {method}" for arm, method in run.arms.items()),
    ]
    return "\n".join([*lines, run.note] if run.note else lines)
