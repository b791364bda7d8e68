"""What is fitted before the cases are answered: arms that learn, and controls that only add a constant to the margin.

An arm that learns is trained on cases that it does not answer; without a development split, in folds of the cases. No
case is answered by a part of an arm that learned from its fold. A constant is fitted and computed from the baseline's
records, and no model is asked. It moves the threshold and changes no ranking. Imports neither torch nor transformers.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from experiments.benchmarks.checks import content_of
from experiments.benchmarks.images import BadImage, open_pictures
from experiments.config import digest
from experiments.evaluation.cases import prompt_of, refused_size
from experiments.runs.store import RunStore, read_object
from experiments.types import Sample
from interp.atomic import atomic_write
from interp.errors import UserError
from mitigation.method import TrainableMethod, abilities
from mitigation.threshold import ConstantShift

if TYPE_CHECKING:
    from interp.batching import Lengths
    from interp.vlm import VLM, Generation, Prompt
    from mitigation.method import Method


BASELINE = "baseline"
SCORE = "safety_margin"  # of a record of a refusal benchmark: minus the refusal margin
AS_YES_NO = {
    "subset": {"benign": "over_safety", "contrast": "typical"},
    "gold": {"comply": "yes", "refuse": "no"},
    "verdict": {"complied": "yes", "rebutted": "yes", "partial": "no", "refused": "no"},
}
Record = dict[str, Any]


def as_yes_no(record: Mapping[str, Any]) -> Record:
    """Return a record of a refusal benchmark as one of a yes/no benchmark: Yes is an answer, No is a refusal.

    Its margin is the safety margin. Other records stay as they are.
    """
    if record["gold"] not in AS_YES_NO["gold"]:
        return dict(record)
    named = {name: words.get(record[name]) for name, words in AS_YES_NO.items()}
    return {**record, **named, "margin": record.get(SCORE)}


def sample_as_yes_no(sample: Sample) -> Sample:
    """Return a case of a refusal benchmark as one of a yes/no benchmark; see ``as_yes_no``."""
    named = {name: AS_YES_NO[name].get(getattr(sample, name), getattr(sample, name)) for name in ("subset", "gold")}
    return replace(sample, **named)  # type: ignore[arg-type]


def is_fitted(method: Any) -> bool:
    """Return whether a method becomes a constant by a fit on answers."""
    return bool(abilities(method).fitted_to)


def only_shifts(method: Any) -> bool:
    """Return whether a method adds a constant to the baseline's margin, or becomes one that does."""
    return isinstance(method, ConstantShift) or is_fitted(method)


def arms_needed(method: "Method", study: str, arms: "Mapping[str, Method]") -> tuple[str, ...]:
    """Return the arms whose answers ``method`` is fitted on; ``study`` is the arm under study.

    Raises:
        UserError: a yes-bias has no arm to match: the arm under study is the baseline, or is fitted itself.
    """
    if abilities(method).fitted_to != "yes_share":
        return (BASELINE,)
    if study == BASELINE or abilities(arms[study]).fitted_to:
        raise UserError(
            f"yes_bias matches the share of Yes of the arm under study, which is {study}; choose an arm that answers, "
            "such as method=vcd"
        )
    return (BASELINE, study)


def fitted(method: Any, records: Sequence[Mapping[str, Any]], *, study: str = "") -> ConstantShift:
    """Return the shift fitted on the baseline's ``records``; a yes-bias also uses the records of ``study``.

    Control cases and cases without a margin are left out; for a yes-bias also cases where ``study`` has no verdict. The
    shift is 0 if nothing can be fitted: a single class or no case, with a very small ``limit``.
    """
    if isinstance(method, ConstantShift):
        return method
    records = [as_yes_no(record) for record in records]
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


def computed(plain: Record, arm: str, constant: ConstantShift) -> Record:
    """Return the record of a case under a constant, from the baseline's record ``plain``; there is no response."""
    carried = (
        *("case", "subset", "scenario", "cluster", "pair", "tags", "alarming", "subset_name", "gold", "text"),
        *("status", "protocol", "reason"),
    )
    margin = as_yes_no(plain)["margin"]
    moved = None if margin is None else margin + constant.shift
    record: Record = {name: plain[name] for name in carried if name in plain}
    record |= {
        "arm": arm,
        "settings": digest([plain["settings"], repr(constant)]),
        "computed": True,
        "response": None,
        **({"margin": None, SCORE: moved} if SCORE in plain else {"margin": moved}),
        "margin_unshifted": margin,
    }
    return record | _judged(plain, moved)


def recomputed(lines: Sequence[Record]) -> list[Record]:
    """Return the records; computed records follow the present verdict of the baseline's record."""
    plain = {line["case"]: line for line in lines if line["arm"] == BASELINE}
    return [
        line | _judged(plain[line["case"]], line.get(SCORE, line["margin"]))
        if line.get("computed") and line["case"] in plain
        else line
        for line in lines
    ]


def _judged(plain: Record, moved: float | None) -> Record:
    """Return the verdicts at the margin ``moved``; there is one only if the baseline has one.

    If the margin keeps its sign, the verdict is the baseline's; otherwise the new sign decides. If the answer was
    drawn, or is in words, the sign always decides. Without a margin the verdict is unknown.
    """
    margin, verdict, published = plain["margin"], plain["verdict"], plain.get("published_verdict")
    if verdict in AS_YES_NO["verdict"]:
        verdict = None if moved is None else "complied" if moved > 0 else "refused"
    elif verdict in ("yes", "no") and (moved is None or (margin > 0) != (moved > 0) or plain.get("sampled")):
        verdict = published = None if moved is None else "yes" if moved > 0 else "no"
    return {"verdict": verdict, "judge": plain.get("judge", ""), "published_verdict": published}


def _margins(records: Iterable[Mapping[str, Any]]) -> Float[np.ndarray, " case"]:
    return np.array([record["margin"] for record in records], dtype=float)


FOLDS = 5
SAFE = {"yes": True, "comply": True, "no": False, "refuse": False}


@dataclass(frozen=True)
class InFolds:
    """A method that was fitted in folds: each case is answered by the part that was fitted without the case's fold.

    ``parts`` are by fold, ``folds`` by case id. Another prompt, as a question about a picture, gets the last part.
    """

    parts: Mapping[int, Any]
    folds: Mapping[str, int] = field(repr=False)

    @property
    def wraps(self) -> Any:
        """See ``mitigation.method.Abilities``."""
        return self.part("")

    def fold(self, case: str) -> int:
        """Return the fold of a case."""
        return self.folds.get(case, max(self.parts))

    def part(self, case: str) -> Any:
        """Return the method that answers a case."""
        return self.parts[self.fold(case)]

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """See ``mitigation.method.Method``; a part answers the prompts of its fold, found by ``Prompt.key``."""
        from interp.batching import merged

        folds = [self.fold(prompt.key) for prompt in prompts]
        order = sorted(range(len(prompts)), key=folds.__getitem__)
        answers = [
            self.parts[fold].generate(
                vlm, [prompts[row] for row in order if folds[row] == fold], max_new_tokens=max_new_tokens
            )
            for fold in sorted(set(folds))
        ]
        return merged(answers).take([order.index(row) for row in range(len(prompts))])


def part_of(method: Any, case: str) -> Any:
    """Return what answers a case: the part of a method in folds, else the method."""
    return method.part(case) if isinstance(method, InFolds) else method


def fold_of(cluster: str) -> int:
    """Return the fold of a case, by a hash of its cluster, so that the cases of a cluster are on one side."""
    return int(_hashed(cluster), 16) % FOLDS


def in_folds(samples: Sequence[Sample], fit: Callable[[int], Any]) -> InFolds:
    """Return the method whose part for a fold of clusters (``fold_of``) is ``fit(fold)``."""
    return InFolds({fold: fit(fold) for fold in range(FOLDS)}, {s.id: fold_of(s.cluster) for s in samples})


def learning_folds(samples: Sequence[Sample]) -> dict[str, int]:
    """Return the fold of each case by id, for arms that learn in folds; clusters and pairs stay whole.

    Clusters are dealt in turn to at most five folds. Clusters with both labels come first, then safe, then unsafe ones;
    a hash of their names orders each kind. So each fold leaves both labels to learn from if that is possible. Depends
    on the cases only. Both cases of a pair are in the same fold.

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
    folds = {unit: number % min(FOLDS, len(units)) for number, unit in enumerate(units)}
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
            first, second = sorted((root(sample.cluster), root(twins.setdefault(sample.pair, sample.cluster))))
            parent[second] = first
    return {sample.id: root(sample.cluster) for sample in samples}


def _hashed(cluster: str) -> str:
    return hashlib.sha256(cluster.encode(errors="replace")).hexdigest()


FOLDER = "learned"
LEARNED_FROM = "learned.json"  # by file, a hash of model, method and the cases that it was learned from


def learned(
    store: RunStore, arm: str, method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], fold: int | None = None
) -> "Method":
    """Train ``method`` on ``samples``, or read it if an earlier launch has trained it. ``fold`` is left out.

    Rank 0 trains and writes ``learned/<arm>.safetensors``; the others wait and read it. A killed training leaves no
    file, but what it had measured of its cases. It is trained again if model, method or cases changed.

    Raises:
        UserError: names the arm; it cannot be trained on these cases, or the file cannot be written or read.
    """
    name = f"{arm}{'' if fold is None else f'-without-fold-{fold}'}"
    out = store.path / FOLDER / f"{name}.safetensors"
    followed = [] if vlm.metric is None else [repr(vlm.metric)]
    cases = digest([*vlm.identity, repr(method), *followed, *([sample.id, content_of(sample)] for sample in samples)])
    before = read_object(store.path / LEARNED_FROM)
    if store.launch.first and before.get(name, cases) != cases:
        out.unlink(missing_ok=True)
    store.write_json(LEARNED_FROM, before | {name: cases})
    failure = ""
    try:
        if store.launch.first and not out.exists():
            _learn(method, vlm, samples, out)
    except UserError as error:
        failure = str(error)
    if reason := store.launch.everyones(failure)[0]:
        raise UserError(f"arm {arm}: {reason}")
    try:
        return method.read(out)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error


def examples(samples: Sequence[Sample], lengths: "Lengths | None" = None) -> "tuple[list[Prompt], list[bool]]":
    """Return prompts to train on and whether each is safe, without controls and unusable images.

    An image is unusable if it cannot be opened, or if the processor refuses its size by ``lengths``.
    """
    prompts: list[Prompt] = []
    safe: list[bool] = []
    for sample in samples:
        with suppress(BadImage):
            pictures = open_pictures(sample)
            if sample.subset != "control" and not refused_size(pictures, lengths):
                prompts.append(prompt_of(sample, pictures))
                safe.append(SAFE[sample.gold])
    return prompts, safe


def _learn(method: TrainableMethod, vlm: "VLM", samples: Sequence[Sample], out: Path) -> None:
    prompts, safe = examples(samples, vlm.batches.lengths)
    if not prompts:
        raise UserError("no development case can be learned from; raise limit, or repair the images")
    try:
        with atomic_write(out) as draft:
            method.learn(vlm, prompts, safe, out=draft)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); make room and run the same command again"
        ) from error
