"""The arms of one study: which are in it, and the method with which each answers.

An arm that learns does so on the benchmark's development split; without one in folds of the cases, as one method.
Controls that only add a constant are fitted on the answers to the development split, or across folds of the cases.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from experiments.evaluation import fitting
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import development_cases, limited
from experiments.evaluation.fitting import BASELINE, FOLDS, InFolds, fold_of, in_folds, learned, learning_folds, part_of
from experiments.evaluation.validated_run import ValidatedRun
from experiments.types import Loaded, Sample
from interp.errors import UserError
from mitigation.method import TrainableMethod, abilities

if TYPE_CHECKING:
    from mitigation.method import Method

DEVELOPMENT = "development.jsonl"
NO_MARGIN = "it needs the weights of a model that is asked here"


class Arms:
    """The arms and their methods. ``absent`` says by arm why it does not answer."""

    def __init__(self, validated: ValidatedRun, answering: Answering) -> None:
        self.run, self.answering = answering.run, answering
        self.vlm: Any = answering.vlm  # a VLM, an ApiModel, or None
        self.store, self.console = answering.store, answering.console
        self.samples = validated.loaded.samples
        self.absent: dict[str, str] = dict(validated.excluded)
        self.metric: Any = None  # that arms learn from, if it is not the Yes/No margin
        self._validated = validated
        self._fitted: dict[str, Method] = {}

    @property
    def entering(self) -> list[str]:
        """The arms that are still in the study."""
        return [arm for arm in self.run.arms if arm not in self.absent]

    def fitted_on(self) -> "dict[str, Method]":
        """Return the methods whose answers to the development split are needed to fit controls."""
        for arm, reason in self.absent.items():
            self._say(f"{arm} does not enter: {reason}")
        fitted = [method for arm in self.entering if fitting.is_fitted(method := self.run.arms[arm])]
        needed = {name for method in fitted for name in fitting.arms_needed(method, self.run.arm, self.run.arms)}
        return {} if self.development is None else {arm: self.ready(arm) for arm in self.entering if arm in needed}

    def fit(self) -> "dict[str, Method]":
        """Return the methods of all arms that ask the model, trained if they learn."""
        return {arm: self.ready(arm) for arm in self.entering if not fitting.only_shifts(self.run.arms[arm])}

    def constants(self, margins: Any = None) -> "dict[str, Any]":
        """Return the constant of each control, from saved margins; in folds without a development split.

        ``margins`` are refusal margins (``refusal_margins``). If they cannot be used, the controls leave the study.
        """
        constants: dict[str, Any] = {}
        records = self.store.records() if self.development is None else self.store.records(DEVELOPMENT)
        if margins is not None:
            records = margins.fitted_on()
        for arm in [arm for arm in self.entering if fitting.only_shifts(self.run.arms[arm])]:
            method = self.run.arms[arm]
            if self.run.benchmark.kind == "refusal" and (why := NO_MARGIN if margins is None else margins.why_not):
                self.exclude(arm, f"it adds a constant to the refusal margin, and there is none: {why}")
                continue

            def without(fold: int, method: Any = method) -> Any:
                others = [record for record in records if fold_of(record["cluster"]) != fold]
                return fitting.fitted(method, others, study=self.run.arm)

            if self.development is not None or not fitting.is_fitted(method):
                constants[arm] = fitting.fitted(method, records, study=self.run.arm)
            else:
                constants[arm] = in_folds(self.samples, without)
                self._say(f"{arm}: in each of {FOLDS} folds of the cases, one constant, fitted on the others")
        return constants

    def compute(self, constants: "dict[str, Any]", margins: Any = None) -> None:
        """Record the cases of the controls, computed from the baseline's records; rank 0 writes."""
        latest = {(line["case"], line["arm"]): line for line in self.store.records()}
        if margins is not None:
            for arm, constant in constants.items():
                margins.shifted(arm, constant)
            latest = {key: margins.attach(line) for key, line in latest.items()}
        lines = [
            fitting.computed(plain, arm, part_of(constant, sample.id))
            for arm, constant in constants.items()
            for sample in self.samples
            if (plain := latest.get((sample.id, BASELINE))) is not None
        ]
        if self.store.launch.first:
            self.store.append(line for line in lines if latest.get((line["case"], line["arm"])) != line)

    def ready(self, arm: str) -> "Method":
        """Return the arm's method. Train it first if it can learn: on the development split, or in folds."""
        method = self.run.arms[arm]
        if not isinstance(method, TrainableMethod):
            return method
        if arm not in self._fitted:
            self.vlm.metric = self.metric
            try:
                self._fitted[arm] = self._taught(arm, method)
            finally:
                self.vlm.metric = None
        return self._fitted[arm]

    @property
    def following(self) -> list[str]:
        """The arms that learn from the refusal margin of the baseline."""
        return [
            arm
            for arm in (self.entering if self.run.benchmark.kind == "refusal" else ())
            if isinstance(self.run.arms[arm], TrainableMethod) and abilities(self.run.arms[arm]).follows_margin
        ]

    def exclude(self, arm: str, reason: str) -> None:
        """Take an arm out of the study for a ``reason`` that is no error.

        Raises:
            UserError: it is the arm under study.
        """
        if arm == self.run.arm:
            raise UserError(f"arm {arm}: {reason}; choose another arm, or other cases")
        self.absent[arm] = reason
        self._say(f"{arm} does not enter: {reason}")

    def in_folds(self, arm: str) -> bool:
        """Return whether the arm learns in folds of the cases, because there is no development split."""
        return isinstance(self.run.arms[arm], TrainableMethod) and self.development is None

    @cached_property
    def development(self) -> Loaded | None:
        """The development split; None if the benchmark has none."""
        return self._validated.development or development_cases(self.run, self.samples)

    @property
    def teaching(self) -> list[Sample]:
        """The cases of the development split that are learned from."""
        assert self.development is not None  # checked by ``validate``
        return limited(self.development.samples, self.run.limit)

    def _taught(self, arm: str, method: TrainableMethod) -> "Method":
        """Train the arm on the development split, or once for each fold of the cases on the other folds."""
        if self.development is not None:
            return self._learned(arm, method, self.teaching)
        folds = learning_folds(self.samples)
        parts = {
            fold: self._learned(arm, method, [case for case in self.samples if folds[case.id] != fold], fold)
            for fold in sorted(set(folds.values()))
        }
        return InFolds(parts, folds)

    def _learned(self, arm: str, method: TrainableMethod, samples: list[Sample], fold: int | None = None) -> "Method":
        label = arm if fold is None else f"{arm}, without fold {fold + 1}"
        status = f"{label}, learns from {len(samples)} cases"
        with self.console.status(status), self.answering.batching(f"{label}, learning"):
            return learned(self.store, arm, method, self.vlm, samples, fold)

    def _say(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, soft_wrap=True, markup=False)
