"""Arms that learn: on the development split, once a run, without controls; then answered like any other."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.mmsafeaware import MMSafeAware
from experiments.benchmarks.mossbench import MOSSBench
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.evaluation.fitting import FOLDS, learned, learning_folds
from experiments.evaluation.validated_run import check_learning
from experiments.runs.store import RunStore, open_run
from experiments.types import Benchmark, Kind, Loaded, Sample
from interp.batching import BatchContext
from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from mitigation.method import TrainableMethod
from mitigation.threshold import ConstantShift
from tests.experiments.compose import lines, only_run, ran, run_of, stopped
from tests.experiments.one_process import Alone
from tests.experiments.synthetic_run import said_of


class StandIn(SimpleNamespace):
    """What Teachable learns on, and never asks; unlike a plain namespace it can be weakly referenced."""


STAND_IN = StandIn(name="none", identity=["none"], metric=None)
STAND_IN.batches = BatchContext(STAND_IN)
taught: list[tuple[list[str], list[bool]]] = []


@dataclass(frozen=True)
class Taught:
    """What ``Teachable`` becomes."""

    shift: float
    digest: str
    path: Path = field(repr=False)

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return ConstantShift(self.shift).generate(vlm, prompts, max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class Teachable:
    """Learns how many of its examples are safe."""

    scale: float = 1.0

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        raise AssertionError("asked before it has learned")

    def learn(self, vlm: VLM, prompts: Sequence[Prompt], safe: Sequence[bool], *, out: Path) -> Taught:
        if len(set(safe)) < 2:
            raise UserError("one kind of case is missing")
        taught.append(([prompt.key or "" for prompt in prompts], list(safe)))
        save_file({"shift": torch.tensor(self.scale * sum(safe) / len(safe))}, out)
        return self.read(out)

    def read(self, out: Path) -> Taught:
        shift = float(load_file(out)["shift"])
        return Taught(shift, hashlib.sha256(out.read_bytes()).hexdigest()[:8], out)


def study(saved: Path, outputs: Path, *overrides: str) -> Run:
    """A study of a learned arm, with a control that is matched to it on the development split."""
    sizes = ("limit=8", "draws=20", "batch_size=4", "max_new_tokens=2", f"model.path={saved}")
    control = "+arms.yes_bias={_target_: mitigation.controls.YesBias}"
    run = run_of("method=vcd", *sizes, control, f"output_root={outputs}", *overrides)
    return replace(run, arms={**run.arms, run.arm: Teachable()})


def shifts(run: Run) -> dict[str, float]:
    """The difference of the learned arm's margins from the baseline's, by case."""
    margins = {(line["arm"], line["case"]): line["margin"] for line in lines(only_run(run))}
    return {case: margins[run.arm, case] - margin for (arm, case), margin in margins.items() if arm == "baseline"}


@pytest.mark.long
def test_an_arm_learns_once_on_the_development_split_and_answers(saved: Path, tmp_path: Path) -> None:
    assert isinstance(Teachable(), TrainableMethod)
    assert not isinstance(Taught(0.0, "", Path()), TrainableMethod)
    taught.clear()
    run = study(saved, tmp_path)
    assert stopped(run) == ran(run)  # continued: it does not learn again
    ((keys, safe),) = taught
    development = limited(IconWorld().development().samples, 8)
    expected = [sample for sample in development if sample.subset != "control"]
    assert keys == [sample.id for sample in expected] != [sample.id for sample in development]
    assert safe == [sample.gold == "yes" for sample in expected]
    found = shifts(run)
    assert len(found) == 8
    assert all(shift == pytest.approx(sum(safe) / len(safe), abs=1e-5) for shift in found.values())
    assert [path.name for path in (only_run(run) / "learned").iterdir()] == [f"{run.arm}.safetensors"]
    assert [line["arm"] for line in lines(only_run(run), "development.jsonl")].count(run.arm) == 8


def test_only_the_first_process_learns_and_the_others_read(tmp_path: Path) -> None:
    taught.clear()
    samples = limited(IconWorld().development().samples, 8)

    def by_rank(rank: int) -> Any:
        store = RunStore(tmp_path, None, resumed=False, launch=Alone(rank, 2))
        return learned(store, "arm", Teachable(), STAND_IN, samples)  # type: ignore[arg-type]

    with pytest.raises(FileNotFoundError):
        by_rank(1)
    found = [by_rank(rank) for rank in (0, 1)]
    assert found[0] == found[1]
    assert len(taught) == 1


@dataclass(frozen=True)
class WithoutDevelopment:
    """IconWorld as a benchmark that has no development split."""

    name: str = "without_development"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        return IconWorld().load()

    def development(self) -> None:
        return None


@pytest.mark.long
def test_without_a_development_split_an_arm_learns_in_folds_of_the_cases(saved: Path, tmp_path: Path) -> None:
    taught.clear()
    run = replace(study(saved, tmp_path, "limit=40"), benchmark=WithoutDevelopment())
    folder = ran(run)
    records = lines(folder)
    fold = {line["case"]: line.get("fold") for line in records if line["arm"] == run.arm}
    assert set(fold.values()) == set(range(FOLDS))
    assert all("fold" not in line for line in records if line["arm"] != run.arm)
    home = {line["case"]: line["cluster"] for line in records}
    assert len({(home[case], number) for case, number in fold.items()}) == len(set(home.values()))  # clusters are whole
    scored = {line["case"] for line in records if line["subset"] != "control"}
    assert len(taught) == FOLDS
    for number, (keys, safe) in enumerate(taught):  # taught by all the others, and by none of its own
        assert set(keys) == {case for case in scored if fold[case] != number}
        moved = {case: shift for case, shift in shifts(run).items() if fold[case] == number}
        assert all(shift == pytest.approx(sum(safe) / len(safe), abs=1e-5) for shift in moved.values())
    assert "Learned in folds of these cases" in said_of(folder)
    assert learning_folds(limited(IconWorld().load().samples, 40)) == fold  # the same every time


def test_folds_leave_both_labels_to_learn_from() -> None:
    first = IconWorld().load().samples[0]

    def of(*golds: str) -> list[Sample]:
        return [replace(first, id=f"c{n}", cluster=f"k{n}", pair=None, gold=gold, subset="typical")  # type: ignore[arg-type]
                for n, gold in enumerate(golds)]  # fmt: skip

    for golds in (("yes", "yes", "no", "no"), ("yes",) * 2 + ("no",) * 30, ("no",) * 9 + ("yes",) * 9):
        samples = of(*golds)
        folds = learning_folds(samples)
        assert folds == learning_folds(samples[::-1])
        for fold in set(folds.values()):
            assert len({sample.gold for sample in samples if folds[sample.id] != fold}) == 2
    for golds in (("yes", "no"), ("yes", "no", "no", "no"), ("no",) * 8):
        with pytest.raises(UserError, match="too few to learn from in folds"):
            learning_folds(of(*golds))


def test_clusters_and_pairs_stay_in_one_fold() -> None:
    first = IconWorld().load().samples[0]
    apart = [
        replace(first, id=f"c{n}", cluster=f"k{n}", pair=None, gold=gold, subset="typical")
        for n, gold in enumerate(("yes", "no") * 6)
    ]
    clustered = learning_folds([replace(sample, cluster=f"k{n // 3}") for n, sample in enumerate(apart)])
    assert all(len({clustered[f"c{n}"] for n in range(start, start + 3)}) == 1 for start in range(0, 12, 3))
    for twins in combinations(range(12), 2):
        paired = learning_folds([replace(s, pair="p") if n in twins else s for n, s in enumerate(apart)])
        assert len({paired[f"c{n}"] for n in twins}) == 1


@pytest.mark.parametrize(
    ("benchmark", "said"), [(MMSafeAware("x"), "research use"), (MOSSBench("x"), "may not be trained on")]
)
def test_what_may_not_be_trained_on_is_not(benchmark: Benchmark, said: str) -> None:
    with pytest.raises(UserError, match=rf"arm mine \(Teachable\) learns, and .*{said}"):
        check_learning({"mine": Teachable()}, benchmark, [], None)


def test_a_learned_arm_is_learned_anew_where_its_cases_were_corrected(tmp_path: Path) -> None:
    taught.clear()
    samples = limited(IconWorld().development().samples, 8)
    with open_run(str(tmp_path), "x", {}, "hash", fresh=True) as store:
        for given in (samples, samples, [replace(samples[0], text="corrected"), *samples[1:]]):
            learned(store, "mine", Teachable(), STAND_IN, given)  # type: ignore[arg-type]
    assert len(taught) == 2


@pytest.mark.parametrize(
    ("method", "limit", "said"),
    [
        ("steering", 8, r"arm steering cannot learn: there are 2 safe and 4 unsafe cases .* at least 10 of each"),
        ("readout", 3, r"arm readout cannot learn: .* different questions"),
    ],
)
def test_too_few_cases_for_a_method_are_said_before_any_weights(
    method: str, limit: int, said: str, tmp_path: Path, no_weights: None
) -> None:
    run = run_of(*f"method={method}".split(), f"limit={limit}", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=said):
        run.task(run)
    assert not list(tmp_path.iterdir())
