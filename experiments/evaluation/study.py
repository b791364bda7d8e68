"""A study: the same cases under every arm, recorded as they are answered, then scored, compared and reported.

``run`` does all of it. A study with further measurements opens a study with ``open_study`` and works on it. It ends
with ``conclude`` (metrics and report of the arms, then its analyses)::

    with study.open_study(study.baseline_only(run)) as work:
        work.answer_all()
        work.conclude([Analysis("closer", "nobody looked closer", look_closer)])
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.config import Run, answered_elsewhere
from experiments.evaluation import scoring
from experiments.evaluation.answer import Answering
from experiments.evaluation.arms import DEVELOPMENT, NO_MARGIN, Arms
from experiments.evaluation.environment import check_batches, describe
from experiments.evaluation.fitting import BASELINE
from experiments.evaluation.validated_run import ValidatedRun, excluded_arms, validate
from experiments.metrics.results import Evaluation
from experiments.report import terminal
from experiments.report.build import build, toy_of
from experiments.report.saved_run import write_thumbnails
from experiments.report.sections import (
    REPORT,
    Analysis,
    NoMargin,
    expect_analyses,
    mark_finished,
    missing_analyses,
    perform,
)
from experiments.runs import record_fields
from experiments.runs.launch import Launch, sharded, whole_weights
from experiments.runs.responses import Responses
from experiments.runs.results_table import write_results
from experiments.runs.store import RunStore, open_run, read_object
from experiments.types import Loaded, Sample, Status
from interp.errors import UserError

if TYPE_CHECKING:
    from experiments.evaluation.refusal_margins import RefusalMargins
    from mitigation.method import Method

Prepared = tuple["Mapping[str, Method]", Mapping[str, str]]  # the arms that answer, and why others do not
Prepare = Callable[[RunStore], Prepared]


@sharded
def run(
    run: Run, *, validated: ValidatedRun | None = None, prepare: Prepare | None = None, after: Sequence[Analysis] = ()
) -> Path:
    """Evaluate all arms, write records, metrics and report, print the summary, and return the directory.

    Several processes of a launch share the cases, and rank 0 does the rest. ``prepare`` is called with the open
    directory, before the model is loaded, and returns the arms that answer. The analyses come last: attention, then
    ``after`` (``Study.conclude``).

    Raises:
        UserError: see ``validate`` and ``open_study``; or an arm cannot answer.
    """
    with open_study(run, validated=validated, prepare=prepare, announce=True) as study:
        study.answer_all()
        study.conclude([*study.attention(), *after])
        return study.store.path


FOR_A_THOUGHT = 64  # tokens, the fewest that a model which thinks first may be given


@contextmanager
def open_study(
    run: Run,
    *,
    validated: ValidatedRun | None = None,
    vlm: Any = None,
    prepare: Prepare | None = None,
    announce: bool = False,
) -> Iterator["Study"]:
    """The study of ``run``, checked and open: its directory (new or continued), its cases and its model.

    ``validated`` are its arms and cases, where they are checked already; ``vlm`` replaces the model; ``prepare`` as in
    ``run``. environment.json is written, and has no end time until the study is concluded.

    Raises:
        UserError: see ``validate``; or the directory cannot be written or the model not loaded.
    """
    launch = Launch.current()
    console = launch.console()
    validated = validated or validate(run, console)
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        if prepare is not None:
            arms, excluded = prepare(store)
            contrasts = [pair for pair in run.contrasts if not excluded.keys() & {*pair}]
            run = replace(run, arms=dict(arms), contrasts=contrasts)
            excluded = {**validated.excluded, **excluded, **excluded_arms(run, validated.loaded.samples)}
            validated = replace(validated, excluded=excluded)
        loaded, complete = validated.loaded, len(validated.complete.samples)
        if announce:
            plan = _plan(run, loaded, complete, store)
            console.print(plan, highlight=False, soft_wrap=run.verbose, markup=False)
        vlm = connected(run) if vlm is None else vlm
        check_budget(run, vlm)
        environment = {**describe(run, vlm, loaded, complete), **validated.notes}
        recorded = read_object(store.path / "environment.json").get("family")
        environment["family"] = recorded or scoring.family(run.arm, run.contrasts)
        store.write_json("environment.json", environment)
        yield Study(run, validated, vlm, store, console, environment)
    launch.wait()  # no process leaves before the run is finished


def baseline_only(run: Run) -> Run:
    """Return the same run with the baseline as its only arm, which is then the arm under study.

    Raises:
        UserError: it has none.
    """
    if "baseline" not in run.arms:
        raise UserError(
            f"the responses of {run.model.name} were made elsewhere and have no baseline; this task asks the model "
            "itself; remove method=responses"
        )
    return replace(run, arm="baseline", arms={"baseline": run.arms["baseline"]})


def check_budget(run: Run, vlm: Any) -> None:
    """Check that a model which thinks first, by its chat template, has room for a thought.

    Raises:
        UserError: it has not.
    """
    if run.endpoint is not None or not getattr(vlm, "thinks", False):
        return
    who = f"{vlm.name} thinks before it answers, by its chat template"
    off = "switch thinking off where the template can: 'model.template={enable_thinking: false}'"
    if run.protocol == "score":
        raise UserError(f"{who}; protocol=score only reads the first token; remove protocol, or {off}")
    if run.max_new_tokens < FOR_A_THOUGHT:
        raise UserError(
            f"max_new_tokens={run.max_new_tokens}: {who}; so few cut its thoughts off; set at least {FOR_A_THOUGHT} "
            f"(2048 fits most), or {off}"
        )


def connected(run: Run) -> Any:
    """Return the model: a VLM, or an ``ApiModel`` in its place; None where no arm calls a model."""
    if answered_elsewhere(run.arms):
        return None
    if run.endpoint is not None:
        from experiments.api.model import ApiModel

        return ApiModel(run.endpoint)
    from interp.loading import load  # torch and transformers: only when everything else is in order

    with whole_weights():
        return load(Launch.current().placed(run.weights))


@dataclass
class Study:
    """An open run, from ``open_study``: its model (None where no arm calls one), store and cases."""

    run: Run
    validated: ValidatedRun
    vlm: Any  # a VLM, an ApiModel, or None
    store: RunStore
    console: Console
    environment: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.loaded = self.validated.loaded
        self.answering = Answering(self.run, self.vlm, self.store, self.console)
        self.arms = Arms(self.validated, self.answering)
        self.methods: dict[str, Method] = {}  # that answered or were computed, by arm
        self.margins: RefusalMargins | None = None
        self.batches: dict[str, dict[str, int]] = {}

    @property
    def samples(self) -> list[Sample]:
        """The cases to be answered."""
        return self.loaded.samples

    @property
    def model_title(self) -> str:
        """The model as reports call it: its name, and the beginning of its weights' hash."""
        return record_fields.model_title(self.environment["model"])

    def records(self) -> list[dict[str, Any]]:
        """Return the latest record of each case and arm, as the cases are described now, by arm and case."""
        return self._described(record_fields.current(self.store.records()))

    def _described(self, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        described = {sample.id: record_fields.description(sample) for sample in self.samples}
        arms = list(self.run.arms)
        here = [r | described[r["case"]] for r in lines if r["arm"] in arms and r["case"] in described]
        if self.margins is not None:
            here = [self.margins.attach(record) for record in here]
        return record_fields.ordered(here, arms)

    def attention(self) -> list[Analysis]:
        """Return the analyses of attention that the run asks for."""
        return [] if self.run.attention_analysis is None else self.run.attention_analysis(self)

    def answer_all(self) -> None:
        """Answer every case under every arm in four stages; skip recorded answers.

        (1) Answer the development cases that controls are fitted on. (2) Fit: each arm becomes a method that can
        answer. (3) Answer all cases in one pass. (4) Compute the controls that only add a constant, from saved
        margins, and the margins of refusals in a refusal benchmark (``refusal_margins``).

        Raises:
            MethodFault: names an arm whose method fails. The same command goes on after the method is corrected.
        """
        self._follow_refusals()
        if methods := self.arms.fitted_on():
            self.answering.answer(methods, self.arms.teaching, file=DEVELOPMENT, label=", development split")
        self.methods = self.arms.fit()
        self.answering.answer(self.methods, self.samples)
        self.margins = self._refusal_margins()
        constants = self.arms.constants(self.margins)
        self.arms.compute(constants, self.margins)
        self.methods |= constants
        self.batches = check_batches(self)

    def _refusal_margins(self) -> "RefusalMargins | None":
        if self.run.benchmark.kind != "refusal":
            return None
        from experiments.evaluation.refusal_margins import margins_of

        return margins_of(self)

    def _follow_refusals(self) -> None:
        """Let arms that learn from a refusal margin do so: the baseline answers first."""
        if not self.arms.following:
            return
        try:
            if self.vlm.thinks:
                raise NoMargin(f"it learns before a thought, and {self.vlm.name} thinks before it answers")
            self.methods = {BASELINE: self.run.arms[BASELINE]} if BASELINE in self.run.arms else {}
            self.answering.answer(self.methods, self.samples)
            margins = self._refusal_margins()
            if margins is None:
                raise NoMargin(NO_MARGIN)
            self.arms.metric, _ = margins.for_tools(next_token=False)
        except NoMargin as error:
            for arm in self.arms.following:
                self.arms.exclude(arm, f"it learns from the refusal margin: {error}")

    def conclude(self, analyses: Sequence[Analysis] = (), *, alone: bool = True) -> None:
        """Measure and print the results, do the ``analyses``, each on its own, and build the report.

        An analysis that raises takes nothing with it (``experiments.report.sections.perform``). The run counts as
        finished unless one is missing or requests failed in transport; the same command then makes up for it. Rank 0
        does it all, but for analyses that are done together. What to type next is said at the end of a study that is
        ``alone``, not one of several.
        """
        by_itself = all(analysis.detail for analysis in analyses)
        first = self.store.launch.first
        if first:
            evaluation = self.measure({analysis.name: analysis.missing for analysis in analyses})
            self._show(evaluation, by_itself=by_itself)
        perform(self, analyses)
        if first:
            self._report()
            mark_finished(self.store.path)
            if alone:
                self.say_next()

    def measure(self, to_come: Mapping[str, str]) -> Evaluation:
        """Write results.csv, metrics.json, thumbnails and environment.json; the analyses are still ``to_come``."""
        lines = record_fields.current(self.store.records())
        current = self._described(lines)
        written = {(record["case"], record["arm"]) for record in current}
        others = [r for r in lines if (r["case"], r["arm"]) not in written]
        self.store.replace([*current, *others])
        evaluation = scoring.evaluate(
            self.run,
            current,
            study=self.run.arm,
            missing=self.arms.absent,
            first=self.environment["family"],
        )
        design = evaluation.design
        if self.margins is not None:
            self.margins.report()
            design["refusal_margin"] = self.margins.design
        if self.batches:
            design["batches"] = self.batches
        write_results(self.store.path, evaluation.results)
        self.store.write_json("metrics.json", design)
        write_thumbnails(self.store.path, self.samples)
        expect_analyses(self.store.path, to_come)  # before the run says that its arms are measured
        reported = sorted(getattr(self.vlm, "reported", ()))  # what an API called the model that answered
        more = ({"reported": reported} if reported else {}) | self.answering.remarks()
        ended = {} if self._lost(current) else {"finished": record_fields.timestamp()}
        self.store.write_json("environment.json", {**self.environment, **ended, **more})
        return Evaluation(evaluation.results, design)

    def _lost(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Return how many requests never got through."""
        return sum(
            record["status"] == Status.TRANSPORT_FAILED and not isinstance(self.run.arms[record["arm"]], Responses)
            for record in lines
        )

    def _show(self, evaluation: Evaluation, *, by_itself: bool) -> None:
        """Print the results; only the first line if the arms are not the answer ``by_itself``: an analysis is."""
        rendered = terminal.render(
            evaluation.results,
            evaluation.design,
            self.environment,
            verbose=self.run.verbose,
            width=self.console.width,
            named=terminal.named_arms(self.environment),
            complete=by_itself,
        )
        self.console.print()
        self.console.print(rendered)
        current = self.records()
        if lost := self._lost(current):
            total = f"{lost} of {len(current)} requests never got through"
            self.console.print(f"{total}; run the same command again to ask them once more", highlight=False)

    def _report(self) -> None:
        """Build the report and print where it is."""
        page = build(self.store.path)
        for sentence in missing_analyses(self.store.path, REPORT):
            self.console.print(sentence, highlight=False, markup=False)
        self._say(f"report: {page}", "every case with its picture, and where the model looked")

    def say_next(self) -> None:
        """Print what may be typed next."""
        commands = terminal.next_commands(
            self.environment,
            str(self.store.path),
            program=terminal.program(),
        )
        if commands:
            self._say("next:")
        for command, description in commands.items():
            self._say(command, description)

    def _say(self, line: str, remark: str = "") -> None:
        """Print a line that may be copied, with a remark if there is room for it."""
        full = f"{line}  # {remark}"
        line = full if remark and len(full) <= self.console.width else line
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


def _plan(run: Run, loaded: Loaded, complete: int, store: RunStore) -> str:
    """Return what is printed before the weights load: the model, the cases, the arms and the directory.

    ``complete`` is how many cases there are without the run's limit.
    """
    studied, scored = run.arms[run.arm], [sample for sample in loaded.samples if sample.subset != "control"]
    name = studied.name if isinstance(studied, Responses) else run.model.name
    counts = [f"{len(scored)} scored"]
    if len(loaded.samples) < complete:
        unsafe = sum(sample.gold in ("no", "refuse") for sample in scored)
        counts = [f"of {complete}, chosen evenly from the subsets", f"{unsafe} unsafe",
                      f"{len(scored) - unsafe} harmless"]  # fmt: skip
    if controls := len(loaded.samples) - len(scored):
        counts.append(f"{controls} controls")
    others = ", ".join(arm for arm in run.arms if arm != run.arm)
    plan = f"{name}: {len(loaded.samples)} cases from {run.benchmark.name} ({', '.join(counts)}). Arm under study: "
    plan += f"{run.arm}." + (f" Compared with: {others}." if others else "")
    methods = [*(f"  {arm}: {method}" for arm, method in run.arms.items()), run.note] if run.verbose else []
    directory = f"{'continuing' if store.resumed else 'run'} {store.path}"
    toy = toy_of({"path": getattr(run.model, "path", "")})
    bundled = [f"{run.model.name} is {toy}."] if toy else []
    return "\n".join([*bundled, plan, *filter(None, methods), directory])
