"""``+exp=mitigation_selection``: choose settings on the development split, and judge them on the test split.

The run's directory has all files of a study. It also has ``choosing.jsonl`` (margins on the development cases, a line
for each case and setting) and ``choice.json`` (every setting and the choice). ``learned/`` has what candidates learned,
and ``figures/mitigations.svg`` the figure. The same command continues an interrupted run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, RenderableType

from experiments.config import Run
from experiments.evaluation import fitting, study
from experiments.evaluation.answer import Answering
from experiments.evaluation.arms import DEVELOPMENT
from experiments.evaluation.cases import limited
from experiments.evaluation.fitting import FOLDS, fold_of, sample_as_yes_no
from experiments.evaluation.refusal_margins import RefusalMargins
from experiments.evaluation.validated_run import validate
from experiments.metrics.results import ALL
from experiments.report.sections import Analysis
from experiments.runs.launch import Launch, sharded
from experiments.runs.store import RunStore
from experiments.studies.mitigation_selection.candidates import (
    Candidate,
    DevelopmentMargins,
    best_setting,
    choose_shift,
    configured,
    setting_name,
)
from experiments.studies.questions import check_first_token, check_margins, check_sizes
from experiments.types import SCORED_SUBSETS, Benchmark, Loaded, Sample
from interp.errors import UserError
from mitigation.method import Baseline, TrainableMethod, abilities
from mitigation.steps import check_words
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from interp.vlm import VLM
    from mitigation.method import Method

BASELINE = "baseline"
THRESHOLD = "threshold"  # the baseline's margin with a constant chosen by the candidates' own rule
CHOOSING = "choosing.jsonl"
CHOICE = "choice.json"
WITH_SPLIT = {"yes_no": "iconworld", "refusal": "iconworld_requests"}


@sharded
@dataclass(frozen=True)
class Mitigations:
    """The task. ``candidates`` by name; ``rivals`` are arms that each is compared with in addition to the baseline.

    ``development`` is on how many cases settings are chosen (None: ``limit``).

    Candidates that learn are learned on four fifths of the development cases and asked on the rest, five times. So a
    setting is chosen on cases that the candidate has not seen. Then they learn from all cases. Both cases of a
    counterfactual pair are in the same fold.

    A candidate that cannot learn, answer or be chosen leaves the study with its reason, and the others go on.
    """

    candidates: dict[str, Any]
    rivals: list[str]
    development: int | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise UserError(
                "task.candidates is empty: name at least one mitigation; see conf/task/mitigation_selection.yaml"
            )
        check_sizes(self, development=1)
        for name, candidate in self.candidates.items():
            if not isinstance(candidate, Candidate):
                raise UserError(f"task.candidates.{name}={candidate!r}: is no Candidate; give it that _target_")
            if name in (BASELINE, THRESHOLD) or not name.replace("_", "").isalnum():
                raise UserError(
                    f"task.candidates.{name}: is in use or no name for a folder; use only letters, digits and _"
                )

    def __call__(self, run: Run) -> Path:
        """Choose, evaluate, print the results, and return the run's directory."""
        console = Launch.current().console()
        run = self._check(run)
        # The task is not part of a run's identity, but here it decides what answers. Metrics and table compare alike.
        in_words = run.benchmark.kind == "refusal"  # such arms are compared with the baseline only
        contrasts = [*run.contrasts, *([] if in_words else ([ALL, rival] for rival in self.rivals))]
        candidates = {name: repr(candidate) for name, candidate in self.candidates.items()}
        described = {"candidates": candidates, "rivals": list(self.rivals), "development": self.development}
        run = replace(run, config=run.config | {"mitigations": described}, contrasts=contrasts)
        table = Analysis("mitigations", "the mitigations were not compared", self._conclude)
        to_come = [THRESHOLD, *self.candidates]
        validated = validate(run, console, to_come=to_come)
        if validated.development is None:
            raise UserError(
                f"benchmark {run.benchmark.name} has no development split to choose settings on; choose them on a "
                f"benchmark that has a split (benchmark={WITH_SPLIT[run.benchmark.kind]}, or a table with the column "
                "split) and give them to a study: method=… method.shift=…"
            )
        chosen = partial(self._chosen_arms, run, validated.development, console)
        return study.run(run, validated=validated, prepare=chosen, after=[] if in_words else [table])

    def _conclude(self, work: study.Study) -> Iterable[RenderableType]:
        from experiments.studies.mitigation_selection.tables import conclude

        return conclude(work, [BASELINE, *self.rivals], _familiar(work.run.benchmark))

    def _check(self, run: Run) -> Run:
        """Check all that can be checked before weights are loaded, and return the run."""
        run = check_margins(run)
        for name, candidate in self.candidates.items():
            if name in run.arms:
                raise UserError(f"task.candidates.{name}: the run has an arm of that name; rename one of them")
            for setting in () if candidate.learns else candidate.settings():
                configured(candidate.method, setting)
        arms = [*run.arms, THRESHOLD, *self.candidates]
        if unknown := [name for name in self.rivals if name not in arms]:
            raise UserError(f"task.rivals: there is no arm {unknown[0]!r}; known: {', '.join(arms)}")
        return run

    def _chosen_arms(self, run: Run, development: Loaded, console: Console, store: RunStore) -> study.Prepared:
        """Return all arms of the test: the run's arms, the threshold, and every candidate as chosen.

        Raises:
            UserError: no candidate can be chosen, or the model thinks first.
        """
        vlm = study.connected(run)
        check_first_token(vlm, "+exp=mitigation_selection")
        work = _Choosing(run, vlm, store, development, console, self.development or run.limit)
        for name, candidate in self.candidates.items():
            with work.candidate(name):
                _check_applies(candidate, vlm, in_words=run.benchmark.kind == "refusal")
                work.fit(name, candidate)
        baseline, candidates = Candidate(Baseline()), work.left(self.candidates)
        settings = 1 + sum(len(list(candidate.settings())) for candidate in candidates.values())
        console.print(f"choosing among {settings} settings on {len(work.samples)} development cases", highlight=False)
        work.ask({BASELINE: baseline, **candidates})
        choices: dict[str, Any] = {THRESHOLD: work.choose(BASELINE, baseline)}
        arms: dict[str, Any] = {**run.arms, THRESHOLD: ConstantShift(choices[THRESHOLD]["chosen"]["shift"] + work.zero)}
        for name, candidate in work.left(candidates).items():
            with work.candidate(name):
                choices[name] = work.choose(name, candidate)
                best = choices[name]["chosen"]
                arms[name] = configured(work.ready(name, candidate.method), best["setting"], shift=best["shift"])
        work.left(candidates)
        store.write_json(CHOICE, choices)
        for name, choice in choices.items():
            console.print(_sentence(name, choice), highlight=False, soft_wrap=True, markup=False)
        return arms, work.failed


class _Choosing:
    """The choice of settings for one model, on the development split."""

    def __init__(
        self, run: Run, vlm: "VLM", store: RunStore, development: Loaded, console: Console, limit: int | None
    ) -> None:
        from interp.hooks.state_memory import StateMemory

        # One token is enough for a margin; the verdict is its sign.
        self.run = replace(run, max_new_tokens=1)
        self.vlm, self.store, self.console = vlm, store, console
        scored = [s for s in development.samples if sample_as_yes_no(s).subset in SCORED_SUBSETS]
        self.samples = limited(scored, limit)
        self.answering = Answering(self.run, vlm, store, console)
        self.refusals: RefusalMargins | None = None
        self.metric: Any = None
        self._in_words: dict[str, dict[str, float]] = {}
        self._ready: dict[tuple[str, int | None], Any] = {}
        self.failed: dict[str, str] = {}  # candidate → why it leaves the study
        self.zero = 0.0  # added to margins: above 0 are as many cases as are answered
        if run.benchmark.kind == "refusal":
            self._follow_refusals(run)
        # Every candidate that learns reads the same states, in each fold again.
        self.states = StateMemory(vlm, lambda: fitting.examples(self.samples)[0])

    def _follow_refusals(self, run: Run) -> None:
        """Learn refusal openings from the baseline's answers in words to the development cases.

        Raises:
            UserError: they have no margin.
        """
        answering, methods = Answering(run, self.vlm, self.store, self.console), {BASELINE: Baseline()}
        answering.answer(methods, self.samples, file=DEVELOPMENT, label=", development split")
        self.refusals = RefusalMargins(answering, methods, self.samples, None, DEVELOPMENT)
        self.refusals.compute()
        self.metric, sentence = self.refusals.for_tools(next_token=False)
        self.zero = self.metric.shift
        self.console.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def _answer(self, methods: "Mapping[str, Method]", samples: Sequence[Sample], label: str = "") -> None:
        """Ask each method for the margins of the cases."""
        if self.refusals is None:
            self.answering.answer(methods, samples, file=CHOOSING, label=label)
            return
        for arm, method in methods.items():
            self.refusals.methods[arm] = method
            margins = self.refusals.safety(arm, [sample.id for sample in samples])
            self._in_words.setdefault(arm, {}).update({case: value + self.zero for case, value in margins.items()})

    @contextmanager
    def candidate(self, name: str) -> Iterator[None]:
        """Open a block of work on a candidate. If it raises a ``UserError``, the candidate leaves the study."""
        try:
            yield
        except UserError as error:
            self.failed[name] = str(error).removeprefix(f"arm {name}: ")

    def left(self, candidates: Mapping[str, Candidate]) -> dict[str, Candidate]:
        """Return the candidates that have not failed.

        Raises:
            UserError: all have.
        """
        if not candidates.keys() - self.failed.keys():
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.failed.items())
            raise UserError(f"no candidate can be chosen ({reasons}). Take more development cases or other candidates.")
        return {name: each for name, each in candidates.items() if name not in self.failed}

    def fit(self, name: str, candidate: Candidate) -> None:
        """Let a candidate that learns do so, from each four fifths of the cases and from all."""
        for fold in (*self._held_out, None) if candidate.learns else ():
            self.ready(name, candidate.method, fold)

    @cached_property
    def _held_out(self) -> dict[int, list[Sample]]:
        """The cases by fold."""
        folds = {fold: [sample for sample in self.samples if _fold(sample) == fold] for fold in range(FOLDS)}
        return {fold: held_out for fold, held_out in folds.items() if held_out}

    def ask(self, candidates: Mapping[str, Candidate]) -> None:
        """Ask every setting of every candidate; if it learns, about each fold after learning from the others."""
        self._ask({name: each for name, each in candidates.items() if not each.learns}, self.samples)
        learners = {name: each for name, each in candidates.items() if each.learns}
        for fold, held_out in self._held_out.items() if learners else ():
            self._ask(learners, held_out, fold)

    def _ask(self, candidates: Mapping[str, Candidate], samples: Sequence[Sample], fold: int | None = None) -> None:
        """Ask all settings together, so that they share work. If that fails, ask each candidate separately.

        In a launch of several processes a failure ends the command: the others wait at the next barrier.
        """
        label = "" if fold is None else f", fold {fold}"
        arms = {
            name: {
                _arm(name, setting): configured(self.ready(name, each.method, fold), setting)
                for setting in each.settings()
            }
            for name, each in candidates.items()
            if name not in self.failed
        }
        try:
            self._answer({arm: method for methods in arms.values() for arm, method in methods.items()}, samples, label)
        except UserError:
            if self.store.launch.size > 1:
                raise
            for name, methods in arms.items():
                with nullcontext() if name == BASELINE else self.candidate(name):
                    self._answer(methods, samples, label)

    def choose(self, name: str, candidate: Candidate) -> dict[str, Any]:
        """Return ``{"method", "settings": [{"setting", "shift", "overall", …}], "chosen"}`` of a candidate."""
        samples = [sample_as_yes_no(sample) for sample in self.samples]
        cases, chosen = DevelopmentMargins.from_samples(samples, self.margins(BASELINE)), {}
        settings = {setting_name(setting): setting for setting in candidate.settings()}
        for label, setting in settings.items():
            chosen[label] = choose_shift(
                *(cases, self.margins(_arm(name, setting))),
                threshold=candidate.threshold and (self.refusals is None or name == BASELINE),
                unsafe_margin=self.run.unsafe_margin,
                draws=min(self.run.draws, 2000),
                seed=self.run.seed,
            )
        best = best_setting(chosen, unsafe_margin=self.run.unsafe_margin)
        rows = {label: {"setting": settings[label], **each._asdict()} for label, each in chosen.items()}
        return {"method": repr(candidate.method), "learned": candidate.learns, "settings": list(rows.values()),
                "chosen": rows[best]}  # fmt: skip

    def ready(self, name: str, method: Any, fold: int | None = None) -> Any:
        """Return ``method``, learned from all development cases, or from the cases outside ``fold``."""
        if not isinstance(method, TrainableMethod):
            return method
        if (name, fold) not in self._ready:
            samples = [s for s in self.samples if fold is None or _fold(s) != fold]
            self.vlm.metric = self.metric
            try:
                with self.answering.batching(f"{name}, learning"), self.states.open():
                    self._ready[name, fold] = fitting.learned(self.store, name, method, self.vlm, samples, fold)
            finally:
                self.vlm.metric = None
        return self._ready[name, fold]

    def margins(self, arm: str) -> np.ndarray:
        """Return the margins of an arm after all are asked; NaN if it gave none."""
        by_case = (self._asked if self.refusals is None else self._in_words).get(arm, {})
        return np.array([by_case.get(sample.id, np.nan) for sample in self.samples], dtype=np.float64)

    @cached_property
    def _asked(self) -> dict[str, dict[str, float]]:
        """The recorded margins by arm and case; a later record replaces an earlier one."""
        by_arm: dict[str, dict[str, float]] = {}
        for record in self.store.records(CHOOSING):
            if record["margin"] is not None:
                by_arm.setdefault(record["arm"], {})[record["case"]] = record["margin"]
        return by_arm


def _arm(name: str, setting: Mapping[str, Any]) -> str:
    """Return the name of a candidate at a setting in the records."""
    return f"{name} {setting_name(setting)}".strip()


def _check_applies(candidate: Candidate, vlm: "VLM", *, in_words: bool) -> None:
    """Raise a UserError if the candidate cannot be chosen on this model and benchmark."""
    can = abilities(candidate.method)
    if in_words and (why := can.unscored or can.unforced):
        raise UserError(f"it has no refusal margin: {why}")
    if can.drops_image:
        check_words(vlm, "take another model")


def _fold(sample: Sample) -> int:
    return fold_of(sample.pair or sample.cluster)


def _familiar(benchmark: Benchmark) -> dict[str, int]:
    """Return the number ``of`` tested templates, and how many the development split has too (``seen``)."""
    development = benchmark.development()
    tested, seen = (
        {sample.tags.get("template") for sample in loaded.samples if sample.subset in SCORED_SUBSETS} - {None}
        for loaded in (benchmark.load(), development or Loaded([], {}, ""))
    )
    return {"seen": len(tested & seen), "of": len(tested)}


def _sentence(name: str, choice: Mapping[str, Any]) -> str:
    best = choice["chosen"]
    setting = setting_name(best["setting"]) or "as it is"
    return (
        f"{name}: {setting}, shift {best['shift']:+.3f}; development: overall {100 * best['overall']:.1f}, unsafe "
        f"{100 * best['unsafe']:.1f}, over-safety {100 * best['over_safety']:.1f}, AUROC "
        f"{best['auroc'] or float('nan'):.3f} (best of {len(choice['settings'])}, {best['n']} cases)"
    )
