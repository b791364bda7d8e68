"""Arms that need labelled cases before they answer: trainable methods, and controls that fit a constant.

No arm is fitted on cases that it is evaluated on. A method is trained once a run, on rank 0, on the benchmark's
development split; a constant is fitted on that split, or by cross-fitting over the test cases where there is none.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.benchmarks.checks import content_of
from experiments.benchmarks.images import BadImage, open_image
from experiments.config import digest
from experiments.evaluation.case_batches import prompt_of
from experiments.runs.launch import Launch
from experiments.runs.resumption import RunStore, read_object
from experiments.types import Sample
from interp.errors import UserError
from mitigation.method import MethodFault, TrainableMethod, abilities
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method


FOLDER = "learned"
LEARNED_FROM = "learned.json"  # by file, a hash of model, method and the cases that it was learned from
FOLDS = 5
BASELINE = "baseline"
SAFE = {"yes": True, "comply": True, "no": False, "refuse": False}


def learning_folds(samples: Sequence[Sample]) -> dict[str, int]:
    """The fold of each case by id, where arms are learned in folds; clusters stay whole.

    Clusters are dealt in turn to at most five folds, in an order that a hash of their names gives, those with cases of
    both labels first, then safe, then unsafe ones: so each fold leaves both labels to learn from wherever that is
    possible. Depends on the cases alone. Twins of a pair share a fold.

    Raises:
        UserError: some fold would leave a single label to learn from, or no case.
    """
    home = _joined(samples)
    labels: dict[str, set[bool]] = {}
    for sample in samples:
        if sample.subset != "control":
            labels.setdefault(home[sample.id], set()).add(SAFE[sample.gold])
    units = sorted(
        dict.fromkeys(home.values()),
        key=lambda unit: (-len(labels.get(unit, ())), sorted(labels.get(unit, ())), _hashed(unit)),
    )
    folds = {unit: place % min(FOLDS, len(units)) for place, unit in enumerate(units)}
    for fold in set(folds.values()):
        left = set().union(*(labels.get(unit, set()) for unit in units if folds[unit] != fold))
        if len(left) < 2:
            raise UserError(
                f"{len(units)} clusters of cases are too few to learn from in folds; safe and unsafe cases are "
                "needed in at least two clusters each; add cases, or give others to learn from: "
                "benchmark.development=<file>"
            )
    return {sample.id: folds[home[sample.id]] for sample in samples}


def _joined(samples: Sequence[Sample]) -> dict[str, str]:
    """Case → the first, in alphabetical order, of the clusters that pairs join to its own."""
    parent = {sample.cluster: sample.cluster for sample in samples}

    def root(cluster: str) -> str:
        while parent[cluster] != cluster:
            cluster = parent[cluster]
        return cluster

    twins: dict[str, str] = {}
    for sample in samples:
        if sample.pair is not None:
            one, other = sorted((root(sample.cluster), root(twins.setdefault(sample.pair, sample.cluster))))
            parent[other] = one
    return {sample.id: root(sample.cluster) for sample in samples}


def _hashed(cluster: str) -> str:
    return hashlib.sha256(cluster.encode(errors="replace")).hexdigest()


def learned(
    arm: str, method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], out: Path, launch: Launch | None = None
) -> "Method":
    """``method`` trained on ``samples``, or read from ``out`` (safetensors) where an earlier launch has trained it.

    Rank 0 of ``launch`` (None: the current one) trains and writes ``out``; the others wait and read it. A training that
    was killed leaves no ``out``, and what it had measured of its cases for the next one. Batches are those of
    ``vlm.batches``.

    Raises:
        MethodFault: names the arm; it cannot be trained on these cases.
        UserError: names the arm; ``out`` cannot be written or read.
    """
    launch = launch or Launch.current()
    try:
        if launch.first and not out.exists():
            _learn(method, vlm, samples, out)
        launch.wait()
        return method.read(out)
    except UserError as error:
        kind = MethodFault if isinstance(error, MethodFault) else UserError
        raise kind(f"arm {arm}: {error}") from error


def learned_in(
    store: RunStore, arm: str, method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], fold: int | None = None
) -> "Method":
    """``learned`` in a run's directory; anew where model, method or cases have changed. ``fold`` is the one left out.

    Raises:
        UserError: see ``learned``.
    """
    name = f"{arm}{'' if fold is None else f'-without-fold-{fold}'}"
    out = store.path / FOLDER / f"{name}.safetensors"
    cases = digest([*vlm.identity, repr(method), *([sample.id, content_of(sample)] for sample in samples)])
    known = read_object(store.path / LEARNED_FROM)
    if store.launch.first and known.get(name, cases) != cases:
        out.unlink(missing_ok=True)
    store.write_json(LEARNED_FROM, known | {name: cases})
    return learned(arm, method, vlm, samples, out, store.launch)


def examples(samples: Sequence[Sample]) -> "tuple[list[Prompt], list[bool]]":
    """Prompts to train on, and whether each is safe; without control cases and images that cannot be opened."""
    prompts: list[Prompt] = []
    safe: list[bool] = []
    for sample in samples:
        if sample.subset == "control":
            continue
        try:
            image = None if sample.image is None else open_image(sample.image)
        except BadImage:
            continue
        prompts.append(prompt_of(sample, image))
        safe.append(SAFE[sample.gold])
    return prompts, safe


def _learn(method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], out: Path) -> None:
    prompts, safe = examples(samples)
    if not prompts:
        raise MethodFault("no case of the development split can teach it; raise limit, or mend the images")
    draft = out.with_name(f"{out.stem}.part{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        of = repr((method, vlm.identity, safe, [content_of(sample) for sample in samples]))
        with vlm.batches.resumable(out.with_suffix(".kept"), of=of):
            method.learn(vlm, prompts, safe, out=draft)
            draft.replace(out)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); make room and run the same command again"
        ) from error
    except UserError as error:
        raise MethodFault(str(error)) from error


def fold_of(cluster: str) -> int:
    """The fold of a case, by a hash of its cluster, so that cases of one cluster are never on both sides."""
    return int(hashlib.sha256(cluster.encode()).hexdigest(), 16) % FOLDS


def arms_needed(method: "Method", study: str, arms: "Mapping[str, Method]") -> tuple[str, ...]:
    """The arms whose answers ``method`` is fitted on; ``study`` is the arm under study.

    Raises:
        UserError: a yes-bias has no arm to match: the arm under study is the baseline, or is fitted itself.
    """
    if abilities(method).fitted_to == "labels":
        return (BASELINE,)
    if study == BASELINE or abilities(arms[study]).fitted_to:
        raise UserError(
            f"yes_bias matches the share of Yes of the arm under study, and that is {study}; "
            f"choose one that answers by itself, as method=vcd"
        )
    return (BASELINE, study)


def fitted(method: Any, records: Sequence[Mapping[str, Any]], *, study: str = "") -> ConstantShift:
    """The shift fitted on the baseline's ``records``; a yes-bias also on those of ``study``, on the cases of both.

    Control cases and cases without a margin are left out; so are, for a yes-bias, cases where ``study`` has no verdict.
    The shift is 0 where nothing can be fitted (a single class or no case, with a very small ``limit``).
    """
    usable = {
        record["case"]: record
        for record in records
        if record["arm"] == BASELINE and record["subset"] != "control" and record["margin"] is not None
    }
    if abilities(method).fitted_to == "labels":
        safe = np.array([record["gold"] == "yes" for record in usable.values()], dtype=bool)
        return ConstantShift(0.0) if safe.all() or not safe.any() else method.fit(_margins(usable.values()), safe)
    studied = [record for record in records if record["arm"] == study and record["verdict"] is not None]
    answered_yes = {record["case"]: record["verdict"] == "yes" for record in studied}
    common = [case for case in usable if case in answered_yes]
    if not common:
        return ConstantShift(0.0)
    return method.fit(
        _margins(usable[case] for case in common), float(np.mean([answered_yes[case] for case in common]))
    )


def cross_fitted(method: Any, records: Sequence[Mapping[str, Any]], *, study: str = "") -> dict[int, ConstantShift]:
    """One shift per fold, fitted on the records of the other folds."""
    return {
        fold: fitted(method, [record for record in records if fold_of(record["cluster"]) != fold], study=study)
        for fold in range(FOLDS)
    }


def _margins(records: Iterable[Mapping[str, Any]]) -> Float[np.ndarray, " case"]:
    return np.array([record["margin"] for record in records], dtype=float)
