"""A study: the same cases under every arm, recorded as they are answered, then scored, compared and reported.

``run`` does all of it. A study with further measurements opens one with ``opened``, works on it, and ends with
``conclude`` (metrics and a report of the arms, then its analyses) or ``finish`` (its own files only)::

    with study.opened(study.baseline_only(run)) as work:
        work.answer_all()
        work.conclude([Analysis("closer", "nobody looked closer", look_closer)])
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from experiments.config import Run, answered_elsewhere
from experiments.evaluation import scoring, training, what_next
from experiments.evaluation.analyses import Analysis, perform
from experiments.evaluation.answer import Answering
from experiments.evaluation.arms import check_arms, check_contrasts, undescribed
from experiments.evaluation.case_batches import size_of
from experiments.evaluation.cases import development_cases, limited, load_cases
from experiments.evaluation.environment import branches, describe
from experiments.evaluation.training_overlap import limited_apart
from experiments.report import next_commands, terminal
from experiments.report.build import build
from experiments.report.page import cost_sentences
from experiments.report.words import shortfall, with_sentences
from experiments.runs import analyses as states
from experiments.runs import provenance, records
from experiments.runs.launch import Launch, sharded, whole_weights
from experiments.runs.responses import Responses
from experiments.runs.resumption import PREDICTIONS, RunStore, open_run, read_object
from experiments.runs.saved_run import write_thumbnails
from experiments.types import Loaded, Sample, Status
from interp.errors import UserError
from mitigation.method import MethodFault, TrainableMethod, abilities

if TYPE_CHECKING:
    from mitigation.method import Method

DEVELOPMENT = "development.jsonl"
Prepare = Callable[[RunStore], "Mapping[str, Method]"]
Check = Callable[[Loaded], None]


@sharded
def run(
    run: Run,
    *,
    check: Check | None = None,
    prepare: Prepare | None = None,
    after: Sequence[Analysis] = (),
) -> Path:
    """Evaluates all arms, writes the record, the metrics and the report, prints the summary, returns the directory.

    Several processes of a launch share the cases, and rank 0 does the rest. ``check`` is called with all cases of the
    benchmark, and may refuse them; ``prepare`` then with the open directory, before the model is loaded, and returns
    the arms that answer. The analyses come last, that of attention before those of ``after`` (``Study.conclude``).

    Raises:
        UserError: see ``opened``; or an arm cannot answer.
    """
    with opened(run, check=check, prepare=prepare, announce=True) as study:
        study.answer_all()
        study.conclude([*study.attention(), *after])
        return study.store.path


@contextmanager
def opened(
    run: Run,
    *,
    cases: Loaded | None = None,
    vlm: Any = None,
    console: Console | None = None,
    check: Check | None = None,
    prepare: Prepare | None = None,
    announce: bool = False,
) -> Iterator["Study"]:
    """The study of ``run``, checked and open: its directory (new or continued), its cases and its model.

    All checks that need no weights come before they are loaded. ``cases`` replace the benchmark's, ``vlm`` the model;
    at most ``run.limit`` cases are used. ``check`` and ``prepare`` as in ``run``. environment.json is written, and has
    no end time until the study is concluded or finished.

    Raises:
        UserError: no case can run here, an arm cannot enter or was trained on the cases, the directory cannot be
            written or the model not loaded.
    """
    launch = Launch.current()
    console = console or launch.console()
    excluded = check_arms(run)
    if prepare is None:
        check_contrasts(run, run.arms, run.benchmark.kind)
    complete = load_cases(run, console) if cases is None else cases
    complete, loaded, notes = limited_apart(run, complete, console)
    excluded |= undescribed(run, loaded.samples)
    entering = {arm: method for arm, method in run.arms.items() if arm not in excluded}
    if check is not None:
        check(complete)
    development = development_cases(run, complete.samples) if training.needed(entering) else None
    if development is not None and development.missing:
        note = shortfall(len(development.samples), development.missing)
        console.print(f"To learn and calibrate on: {note}", highlight=False, markup=False)
    to_learn_from = None if development is None else limited(development.samples, run.limit)
    training.check_cases(entering, loaded.samples, to_learn_from)
    for arm, method in run.arms.items():
        if isinstance(method, Responses):
            console.print(f"{arm}: {method.check(loaded.samples)}", highlight=False, markup=False)
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        if prepare is not None:
            run = replace(run, arms=dict(prepare(store)))
            excluded = check_arms(run) | undescribed(run, loaded.samples)
        if announce:
            console.print(
                _plan(run, loaded, len(complete.samples), store), highlight=False, soft_wrap=run.verbose, markup=False
            )
        vlm = connected(run) if vlm is None else vlm
        environment = describe(run, vlm, loaded, len(complete.samples)) | notes
        recorded = read_object(store.path / "environment.json").get("family")
        environment["family"] = recorded or scoring.family(run.arm, run.contrasts)
        store.write_json("environment.json", environment)
        yield Study(run, vlm, store, loaded, console, environment, excluded, development)
    launch.wait()  # no process leaves before the run is finished


def baseline_only(run: Run) -> Run:
    """The same run with the baseline as its only arm, which is then the arm under study.

    Raises:
        UserError: it has none.
    """
    if "baseline" not in run.arms:
        raise UserError(
            f"the responses of {run.model.name} were made elsewhere and have no baseline; this task asks the model "
            "itself; leave method=responses out"
        )
    return replace(run, arm="baseline", arms={"baseline": run.arms["baseline"]})


def connected(run: Run) -> Any:
    """The model: a VLM, or an ``ApiModel`` in its place; None where no arm calls a model."""
    if answered_elsewhere(run.arms):
        return None
    if run.endpoint is not None:
        from experiments.api.model import ApiModel

        return ApiModel(run.endpoint, cache=Path(run.output_root) / "api_cache")
    from interp.loading import load  # torch and transformers: only when everything else is in order

    with whole_weights():
        return load(Launch.current().placed(run.weights))


class _Share(NamedTuple):
    """Cases that one method answers for an arm; ``fold`` is theirs, where it has learned from the others."""

    method: "Method"
    samples: Sequence[Sample]
    label: str
    fold: int | None = None


@dataclass
class Study:
    """An open run, from ``opened``: its model (None where no arm calls one), store and cases."""

    run: Run
    vlm: Any  # a VLM, an ApiModel, or None
    store: RunStore
    loaded: Loaded
    console: Console
    environment: Mapping[str, Any]
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    checked_development: Loaded | None = None  # where it was needed before the weights were loaded

    def __post_init__(self) -> None:
        self.answering = Answering(self.run, self.vlm, self.store, self.console)
        self._trained: dict[str, Method] = {}
        self.faults: dict[str, MethodFault] = {}

    @cached_property
    def development(self) -> Loaded | None:
        """The development split; None where the benchmark has none."""
        loaded = self.checked_development or development_cases(self.run, self.samples)
        return None if loaded is None else loaded._replace(samples=self.seen(loaded.samples))

    def seen(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples whose pictures the model's processor can take; prints which it cannot."""
        lengths = None if self.vlm is None else self.vlm.batches.lengths
        if lengths is None:
            return list(samples)
        sizes = {sample.id: size_of(sample.image) for sample in samples}
        reasons = {case: reason for case, size in sizes.items() if size and (reason := lengths.refusal(size))}
        for case, reason in reasons.items():
            self.console.print(f"case {case} is left out: {reason}", highlight=False, soft_wrap=True, markup=False)
        return [sample for sample in samples if sample.id not in reasons]

    @property
    def samples(self) -> list[Sample]:
        """The cases to be answered."""
        return self.loaded.samples

    @property
    def model_title(self) -> str:
        """The model as reports call it: its name, and the beginning of its weights' hash."""
        return provenance.model_title(self.environment["model"])

    def records(self) -> list[dict[str, Any]]:
        """The records of this run's arms and cases; a later record of a case and arm replaces an earlier one.

        Without those of arms that failed; in the order of the arms.
        """
        cases, arms = {sample.id for sample in self.samples}, [arm for arm in self.run.arms if arm not in self.faults]
        here = (r for r in self.store.records(PREDICTIONS) if r["arm"] in arms and r["case"] in cases)
        return sorted(records.current(here), key=lambda record: arms.index(record["arm"]))

    def attention(self) -> list[Analysis]:
        """The analyses of attention that the run asks for."""
        return [] if self.run.attention_analysis is None else self.run.attention_analysis(self)

    def answer_all(self) -> None:
        """Answers every case under every arm, skipping recorded ones; all arms answer a batch before the next one.

        What learns or is fitted on the development split does so first. What learns from the cases themselves, in
        folds, comes last. The judge reads the answers batch by batch. An arm whose method fails (``MethodFault``)
        leaves the study with a sentence, and so do arms fitted to it; the others go on. Not so the baseline, nor with
        several processes, which could no longer agree.
        """
        for arm in self.run.arms:
            if arm in self.not_applicable:
                self.console.print(f"{arm} does not enter: {self.not_applicable[arm]}", highlight=False, markup=False)
        in_folds = [arm for arm in self._entering() if self.in_folds(arm)]
        fitted = [arm for arm in self._entering() if abilities(self.run.arms[arm]).fitted_to and arm not in in_folds]
        first = bool(fitted) and self.development is not None  # read only where an arm is fitted
        last = [*in_folds, *([] if first else fitted)]
        methods: dict[str, Method] = {}
        for arm in self._entering():
            if arm not in last and arm not in fitted:
                with self._excused(arm):
                    methods[arm] = self.ready(arm)
        if first:
            methods |= self._fitted(fitted)
        ordered = {arm: methods[arm] for arm in self._entering() if arm in methods}
        self.answering.ranging = any(arm in fitted for arm in last) and self.run.endpoint is None
        self.answering.answer(ordered, self.samples, on_fault=self._leave)
        for arm in last:
            if arm in self.not_applicable:
                continue
            with self._excused(arm):
                for share in self._learned_in_folds(arm) if arm in in_folds else self._cross_fitted(arm):
                    labels = {arm: share.label}
                    self.answering.answer({arm: share.method}, share.samples, labels=labels, fold=share.fold)

    def _entering(self) -> list[str]:
        """The arms that may enter and have not failed."""
        return [arm for arm in self.run.arms if arm not in self.not_applicable]

    @contextmanager
    def _excused(self, arm: str) -> Iterator[None]:
        """A block of ``arm``'s own work: where its method fails, it leaves the study."""
        try:
            yield
        except MethodFault as fault:
            self._leave(arm, fault)

    def _leave(self, arm: str, fault: MethodFault) -> Set[str]:
        """Lets ``arm`` leave the study, and the arms that are fitted to it; returns all of them."""
        if arm == training.BASELINE or self.store.launch.size > 1:
            raise fault
        faults = {arm: fault}
        for other in self._entering():
            method = self.run.arms[other]
            if other != arm and abilities(method).fitted_to and arm in self._needed(other):
                faults[other] = MethodFault(f"arm {other} is fitted to arm {arm}, which failed")
        for name, one in faults.items():
            self.faults[name] = one
            self.not_applicable = {**self.not_applicable, name: str(one)}
            self.console.print(str(one), highlight=False, soft_wrap=True, markup=False)
        return faults.keys()

    def _needed(self, arm: str) -> tuple[str, ...]:
        """The arms whose answers ``arm`` is fitted on."""
        return training.arms_needed(self.run.arms[arm], self.run.arm, self.run.arms)

    def _fitted(self, arms: Sequence[str]) -> "dict[str, Method]":
        """By arm, the shift that is fitted on the development split, which the arms it needs answer first."""
        development = self.development
        assert development is not None
        needed = dict.fromkeys(name for arm in arms for name in self._needed(arm))
        samples = limited(development.samples, self.run.limit)
        asked: dict[str, Method] = {}
        for name in needed:
            with self._excused(name):
                asked[name] = self.ready(name)
        labels = {name: f"{name}, development split" for name in asked}
        if asked:
            self.answering.answer(asked, samples, file=DEVELOPMENT, labels=labels, on_fault=self._leave)
        found: dict[str, Method] = {}
        for arm in (arm for arm in arms if arm in self._entering()):
            with self._excused(arm):
                found[arm] = training.fitted(self.run.arms[arm], self.store.records(DEVELOPMENT), study=self.run.arm)
        return found

    def _cross_fitted(self, arm: str) -> Iterator["_Share"]:
        """Cases of each fold, with a constant that is fitted on the others' answers: those that it may answer anew."""
        shifts = training.cross_fitted(self.run.arms[arm], self.store.records(PREDICTIONS), study=self.run.arm)
        label = f"{arm}: in each of {len(shifts)} folds of the cases, one constant, fitted on those of the others"
        self.console.print(label, highlight=False, soft_wrap=True, markup=False)
        for fold, shift in shifts.items():
            members = [sample for sample in self.samples if training.fold_of(sample.cluster) == fold]
            asked = self.answering.take_over(arm, shift, members)
            yield _Share(shift, asked, f"{arm}, fold {fold + 1} of {len(shifts)}")

    def in_folds(self, arm: str) -> bool:
        """Whether the arm learns from the cases themselves, fold by fold, because there is no development split."""
        return isinstance(self.run.arms[arm], TrainableMethod) and self.development is None

    def _learned_in_folds(self, arm: str) -> Iterator["_Share"]:
        """The cases of each fold, with what the arm has learned from those of the others."""
        folds, untaught = training.learning_folds(self.samples), self.run.arms[arm]
        assert isinstance(untaught, TrainableMethod)
        for fold in sorted(set(folds.values())):
            held_out, others = (
                [sample for sample in self.samples if (folds[sample.id] == fold) is own] for own in (True, False)
            )
            label = f"{arm}, fold {fold + 1} of {len(set(folds.values()))}"
            status = f"{label}, learns from the {len(others)} cases of the others"
            with self.console.status(status), self.answering.batching(f"{label}, learning"):
                method = training.learned_in(self.store, arm, untaught, self.vlm, self.seen(others), fold)
            yield _Share(method, held_out, label, fold)

    def ready(self, arm: str) -> "Method":
        """The arm's method; a trainable one after training on the development split, not where it learns in folds."""
        method = self.run.arms[arm]
        if not isinstance(method, TrainableMethod):
            return method
        if arm not in self._trained:
            development = self.development
            assert development is not None  # checked before any weights
            samples = limited(development.samples, self.run.limit)
            label = f"{arm} learns from {len(samples)} cases of the development split"
            with self.console.status(label), self.answering.batching(f"{arm}, learning"):
                self._trained[arm] = training.learned_in(self.store, arm, method, self.vlm, samples)
        return self._trained[arm]

    def conclude(self, analyses: Sequence[Analysis] = (), *, alone: bool = True) -> None:
        """Measures and prints the results, does the ``analyses``, each on its own, and builds the report.

        An analysis that raises takes nothing with it (``experiments.evaluation.analyses.perform``). The run counts as
        finished unless one is missing or requests failed in transport; the same command then makes up for it. Rank 0
        does it all, but for analyses that are done together. What to type next is said at the end of a study that is
        ``alone``, not one of several.

        Raises:
            MethodFault: at the very end, where an arm has failed; that of the arm under study comes first.
        """
        by_itself = all(analysis.detail for analysis in analyses)
        analyses = [*map(_failed_arm, self.faults, self.faults.values()), *analyses]
        first = self.store.launch.first
        if first:
            metrics = self.measure({analysis.name: analysis.missing for analysis in analyses})
            self._show(metrics, by_itself=by_itself)
        perform(self, analyses)
        if first:
            self._report()
            states.settle(self.store.path)
            if alone and not self.faults:
                self.say_next()
        if self.faults:
            raise self.faults.get(self.run.arm) or next(iter(self.faults.values()))

    def measure(self, to_come: Mapping[str, str]) -> dict[str, Any]:
        """Writes metrics.json, which it returns, thumbnails, and environment.json; analyses are still ``to_come``."""
        current = self.records()
        result = scoring.evaluate(
            self.run,
            current,
            study="baseline" if self.run.arm in self.faults else self.run.arm,
            missing=self.not_applicable,
            first=self.environment["family"],
        )
        result = scoring.with_published_rows(result, self.run.benchmark.name, self.environment["model"], current)
        if fault := self.faults.get(self.run.arm):
            result["failed"] = str(fault)
        self.store.write_json("metrics.json", result)
        write_thumbnails(self.store.path, self.samples)
        states.expect(self.store.path, to_come)  # before the run says that its arms are measured
        reported = sorted(getattr(self.vlm, "reported", ()))  # what an API called the model that answered
        more = ({"reported": reported} if reported else {}) | branches(current) | self.answering.efficiency()
        self._close(more, finished=not self._lost())
        return result

    def _lost(self) -> int:
        """How many requests never got through."""
        return sum(
            record["status"] == Status.TRANSPORT_FAILED and not isinstance(self.run.arms[record["arm"]], Responses)
            for record in self.records()
        )

    def _show(self, metrics: Mapping[str, Any], *, by_itself: bool) -> None:
        """Prints the results; a sentence of them where the arms are not the answer ``by_itself``: an analysis is."""
        shown = terminal.shown(
            with_sentences(metrics, self.environment),
            verbose=self.run.verbose,
            width=self.console.width,
            named=next_commands.named_arms(self.environment),
            whole=by_itself or "failed" in metrics,
        )
        self.console.print()
        self.console.print(shown)
        if self.run.verbose:
            for sentence in cost_sentences(self.answering.cost()):
                self.console.print(sentence, highlight=False, markup=False)
        if lost := self._lost():
            total = f"{lost} of {len(self.records())} requests never got through"
            self.console.print(f"{total}; run the same command again to ask them once more", highlight=False)

    def _report(self) -> None:
        """Builds the report and says where it is."""
        page = build(self.store.path)
        for sentence in states.failures(self.store.path, states.REPORT):
            self.console.print(sentence, highlight=False, markup=False)
        inside = "" if self.run.verbose else "  (every case with its picture, and where the model looked)"
        self.console.print(f"report: {page}{inside}", highlight=False, soft_wrap=True)

    def say_next(self) -> None:
        """Prints what may be typed now."""
        commands = next_commands.next_commands(
            self.environment,
            str(self.store.path),
            refusals=self.run.benchmark.kind == "refusal",
            program=what_next.program(),
        )
        for at, (command, description) in enumerate(commands.items()):
            line = f"{'next:' if not at else '':<7} {command:<44}  # {description}"
            self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def finish(self, analyses: Sequence[Analysis] = ()) -> None:
        """Ends a run with metrics and tables of its own: nothing is scored, no report is built; ``analyses`` as above.

        It counts as finished where none of them is missing.
        """
        if self.store.launch.first:
            states.expect(self.store.path, {analysis.name: analysis.missing for analysis in analyses})
            self._close({}, finished=True)
            perform(self, analyses, reported=False)
            states.settle(self.store.path)

    def _close(self, more: Mapping[str, Any], *, finished: bool) -> None:
        ended = {"finished": records.now()} if finished else {}
        self.store.write_json("environment.json", {**self.environment, **ended, **more})


def _failed_arm(arm: str, fault: MethodFault) -> Analysis:
    """What is left of an arm that failed: a sentence in the report, a traceback, and a run that is not finished."""

    def say_again(study: Study) -> list[str]:
        raise fault

    return Analysis(f"arm {arm}", f"{arm} is in no table", say_again)


def _composition(samples: Sequence[Sample], complete: int) -> str:
    """In brackets, how many cases of which kind a limit has left of ``complete``, and which of them do not count."""
    controls = sum(sample.subset == "control" for sample in samples)
    left_out = f"{controls} of them controls, which the answer leaves out" if controls else ""
    if len(samples) == complete:
        return f" ({left_out})" if left_out else ""
    scored = [sample for sample in samples if sample.subset != "control"]
    unsafe = sum(sample.gold in ("no", "refuse") for sample in scored)
    kinds = [f"{unsafe} unsafe", f"{len(scored) - unsafe} harmless"]
    kinds += [f"{controls} controls, which the answer leaves out"] if controls else []
    return f" (of {complete}, the subsets in turn: {', '.join(kinds)})"


def _plan(run: Run, loaded: Loaded, complete: int, store: RunStore) -> str:
    """What is printed before the weights load: directory, model, benchmark and arms, with their settings if verbose.

    ``complete`` is how many cases there are without the run's limit.
    """
    studied = run.arms[run.arm]
    name = studied.name if isinstance(studied, Responses) else run.model.name
    subject = f"{name} on {len(loaded.samples)} cases of {run.benchmark.name}{_composition(loaded.samples, complete)}"
    place = f"{'continuing' if store.resumed else 'run'} {store.path}"
    if not run.verbose:
        others = ", ".join(arm for arm in run.arms if arm != run.arm)
        asked = f"{subject}, asked as {run.arm}" + (f" and, to compare, as {others}" if others else "")
        return "\n".join([*what_next.bundled(run), asked, place])
    lines = [place, subject, *(f"  {arm}: {method}" for arm, method in run.arms.items())]
    return "\n".join([*what_next.bundled(run), *lines, *filter(None, [run.note])])
