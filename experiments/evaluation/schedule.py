"""The schedule of a study: what learns or is fitted answers after the cases that it is taught by.

On a benchmark with a development split that comes first, for what learns and what is fitted to other arms; then all
arms answer side by side. Without one, an arm is learned or fitted in folds of the cases themselves, after the others.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from experiments.evaluation import training
from experiments.evaluation.admission import Admitted
from experiments.evaluation.answer import Answering
from experiments.evaluation.case_batches import size_of
from experiments.evaluation.cases import development_cases, limited
from experiments.evaluation.shift_ranges import RangedBaseline
from experiments.runs.resumption import PREDICTIONS, RunStore
from experiments.types import Loaded, Sample
from mitigation.method import Baseline, MethodFault, TrainableMethod, abilities

if TYPE_CHECKING:
    from mitigation.method import Method

DEVELOPMENT = "development.jsonl"
BASELINE = training.BASELINE


class Turn(NamedTuple):
    """Cases that some arms answer side by side, batch by batch; the arguments of ``Answering.answer``.

    ``fold`` is the cases' own, where the methods were learned from the others.
    """

    arms: "Mapping[str, Method]"
    samples: Sequence[Sample]
    file: str = PREDICTIONS
    labels: Mapping[str, str] = MappingProxyType({})
    fold: int | None = None


class Schedule:
    """The turns of one study, and the arms that are still in it.

    ``absent`` says by arm why it does not answer; ``faults`` are those of arms whose method failed on the way.
    """

    def __init__(self, admitted: Admitted, answering: Answering) -> None:
        self.run, self.admitted, self.answering = answering.run, admitted, answering
        self.vlm: Any = answering.vlm  # a VLM, an ApiModel, or None
        self.samples = admitted.loaded.samples
        self.absent: dict[str, str] = dict(admitted.excluded)
        self.faults: dict[str, MethodFault] = {}
        self._learned: dict[str, Method] = {}

    @property
    def store(self) -> RunStore:
        """The run's directory."""
        return self.answering.store

    @property
    def console(self) -> Console:
        """Where is said what is learned from what."""
        return self.answering.console

    def turns(self) -> Iterator[Turn]:
        """All turns, in order; each is to be answered before the next is asked for."""
        for arm, reason in self.absent.items():
            self.console.print(f"{arm} does not enter: {reason}", highlight=False, markup=False)
        in_folds = [arm for arm in self._entering() if self.in_folds(arm)]
        fitted = [arm for arm in self._entering() if abilities(self.run.arms[arm]).fitted_to and arm not in in_folds]
        cross_fitted = fitted if fitted and self.development is None else []
        methods = self._ready([arm for arm in self._entering() if arm not in {*in_folds, *fitted}])
        if fitted and not cross_fitted:
            yield from self._development_turn(fitted)
            methods |= self._fitted(fitted)
        if cross_fitted and self.run.endpoint is None and methods.get(BASELINE) == Baseline():
            methods[BASELINE] = RangedBaseline()
        yield Turn({arm: methods[arm] for arm in self._entering() if arm in methods}, self.samples)
        for arm in [*in_folds, *cross_fitted]:
            turns = self._learned_in_folds(arm) if arm in in_folds else self._cross_fitted(arm)
            with self._excused(arm):
                while arm not in self.absent and (turn := next(turns, None)):
                    yield turn

    def ready(self, arm: str) -> "Method":
        """The arm's method; a trainable one after training on the development split, not where it learns in folds."""
        method = self.run.arms[arm]
        if not isinstance(method, TrainableMethod):
            return method
        if arm not in self._learned:
            samples = self._teaching()
            label = f"{arm} learns from {len(samples)} cases of the development split"
            with self.console.status(label), self.answering.batching(f"{arm}, learning"):
                self._learned[arm] = training.learned_in(self.store, arm, method, self.vlm, samples)
        return self._learned[arm]

    def in_folds(self, arm: str) -> bool:
        """Whether the arm learns from the cases themselves, fold by fold, because there is no development split."""
        return isinstance(self.run.arms[arm], TrainableMethod) and self.development is None

    @cached_property
    def development(self) -> Loaded | None:
        """The development split, without pictures that the model cannot take; None where the benchmark has none."""
        loaded = self.admitted.development or development_cases(self.run, self.samples)
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

    def leave(self, arm: str, fault: MethodFault) -> Set[str]:
        """Lets ``arm`` leave the study, whose method failed, and the arms that are fitted to it; returns all of them.

        Raises:
            MethodFault: the baseline cannot leave, and no arm can with several processes, which could no longer agree.
        """
        if arm == BASELINE or self.store.launch.size > 1:
            raise fault
        faults = {arm: fault}
        for other in self._entering():
            if other != arm and abilities(self.run.arms[other]).fitted_to and arm in self._needed(other):
                faults[other] = MethodFault(f"arm {other} is fitted to arm {arm}, which failed")
        self.faults |= faults
        self.absent |= {name: str(reason) for name, reason in faults.items()}
        for reason in faults.values():
            self.console.print(str(reason), highlight=False, soft_wrap=True, markup=False)
        return faults.keys()

    @contextmanager
    def _excused(self, arm: str) -> Iterator[None]:
        """A block of ``arm``'s own work: where its method fails, it leaves the study."""
        try:
            yield
        except MethodFault as fault:
            self.leave(arm, fault)

    def _entering(self) -> list[str]:
        return [arm for arm in self.run.arms if arm not in self.absent]

    def _ready(self, arms: Sequence[str]) -> "dict[str, Method]":
        methods: dict[str, Method] = {}
        for arm in arms:
            with self._excused(arm):
                methods[arm] = self.ready(arm)
        return methods

    def _teaching(self) -> list[Sample]:
        """The cases of the development split that are learned from."""
        assert self.development is not None  # checked by ``admit``
        return limited(self.development.samples, self.run.limit)

    def _needed(self, arm: str) -> tuple[str, ...]:
        """The arms whose answers ``arm`` is fitted on."""
        return training.arms_needed(self.run.arms[arm], self.run.arm, self.run.arms)

    def _development_turn(self, fitted: Sequence[str]) -> Iterator[Turn]:
        """The development split, answered by the arms that others are fitted to."""
        methods = self._ready(list(dict.fromkeys(name for arm in fitted for name in self._needed(arm))))
        if methods:
            labels = {arm: f"{arm}, development split" for arm in methods}
            yield Turn(methods, self._teaching(), DEVELOPMENT, labels)

    def _fitted(self, arms: Sequence[str]) -> "dict[str, Method]":
        """By arm, the constant that is fitted on the answers to the development split."""
        shifts: dict[str, Method] = {}
        for arm in (arm for arm in arms if arm in self._entering()):
            with self._excused(arm):
                shifts[arm] = training.fitted(self.run.arms[arm], self.store.records(DEVELOPMENT), study=self.run.arm)
        return shifts

    def _cross_fitted(self, arm: str) -> Iterator[Turn]:
        """Cases of each fold, with a constant that is fitted on the others' answers: those that it may answer anew."""
        shifts = training.cross_fitted(self.run.arms[arm], self.store.records(PREDICTIONS), study=self.run.arm)
        label = f"{arm}: in each of {len(shifts)} folds of the cases, one constant, fitted on those of the others"
        self.console.print(label, highlight=False, soft_wrap=True, markup=False)
        for fold, shift in shifts.items():
            members = [sample for sample in self.samples if training.fold_of(sample.cluster) == fold]
            labels = {arm: f"{arm}, fold {fold + 1} of {len(shifts)}"}
            yield Turn({arm: shift}, self.answering.take_over(arm, shift, members), labels=labels)

    def _learned_in_folds(self, arm: str) -> Iterator[Turn]:
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
            yield Turn({arm: method}, held_out, labels={arm: label}, fold=fold)
