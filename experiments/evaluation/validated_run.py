"""Which arms answer which cases: decided once a run, before any weights load.

``validate`` makes all checks. A method declares what it needs (``mitigation.method.Abilities``); nothing asks for its
class.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.benchmarks.images import BadImage, open_pictures
from experiments.config import Run
from experiments.evaluation import fitting
from experiments.evaluation.cases import development_cases, limited, load_cases, prompt_of
from experiments.evaluation.fitting import SAFE, learning_folds
from experiments.metrics.results import ALL
from experiments.report.tables import shortfall
from experiments.runs.launch import Launch
from experiments.runs.responses import Responses
from experiments.types import Benchmark, Kind, Loaded, Sample
from interp.errors import UserError
from interp.tensor_file import FILE, NO_PICTURE, ROW, prompt_hash, read_rows
from mitigation.method import TrainableMethod, abilities, check_cases

TRAINING_ROWS = "training_rows"  # in environment.json: what is not known of them
UNREADABLE = bytes(ROW - len(NO_PICTURE)) + NO_PICTURE  # is no row's hash
NO_MARGIN = "it is a constant on the margin between Yes and No, which an open answer does not have"


@dataclass(frozen=True)
class ValidatedRun:
    """A run's arms and cases after all checks.

    ``complete`` are the benchmark's cases. ``loaded`` are the cases within ``run.limit``, which are answered.
    ``development`` are those to learn from and to be fitted on; None where no arm is, or the benchmark has none.
    ``excluded`` are the arms that cannot enter, each with the reason; ``notes`` go into environment.json.
    """

    complete: Loaded
    loaded: Loaded
    development: Loaded | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def validate(run: Run, console: Console | None = None, *, to_come: Collection[str] = ()) -> ValidatedRun:
    """Check all of ``run`` that can be checked without weights, and load its cases.

    ``to_come`` names arms that are chosen on the development split before the study. What cannot run here, and what is
    left out, is printed.

    Raises:
        UserError: judge or protocol do not fit the benchmark, or no case can run here. An arm was trained on the cases,
            has nothing to learn from, or needs more than an API gives. The arm under study cannot enter, or a contrast
            names no arm.
    """
    console = console or Launch.current().console()
    _check_questions(run)
    check_contrasts(run, [*run.arms, *to_come], run.benchmark.kind)
    _check_endpoint(run)
    complete = load_cases(run, console)
    loaded = complete._replace(samples=limited(complete.samples, run.limit))
    notes = check_untrained(run.arms, run.model, loaded.samples)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    needing = [m for m in run.arms.values() if isinstance(m, TrainableMethod) or abilities(m).fitted_to]
    development = development_cases(run, complete.samples) if needing or to_come else None
    if development is not None and development.missing:
        note = shortfall(len(development.samples), development.missing)
        console.print(f"To learn and calibrate on: {note}", highlight=False, markup=False)
    teaching = None if development is None else limited(development.samples, run.limit)
    excluded = excluded_arms(run, loaded.samples, loaded.samples if teaching is None else teaching)
    entering = {arm: method for arm, method in run.arms.items() if arm not in excluded}
    for method in entering.values():
        if abilities(method).fitted_to:
            fitting.arms_needed(method, run.arm, run.arms)
    learning = {arm: method for arm, method in entering.items() if isinstance(method, TrainableMethod)}
    check_learning(learning, run.benchmark, loaded.samples, teaching)
    for arm, method in run.arms.items():
        if isinstance(method, Responses):
            console.print(f"{arm}: {method.check(loaded.samples)}", highlight=False, markup=False)
    return ValidatedRun(complete, loaded, development, excluded, {TRAINING_ROWS: notes} if notes else {})


def excluded_arms(run: Run, samples: Sequence[Sample] = (), teaching: Sequence[Sample] | None = None) -> dict[str, str]:
    """Return the arms that cannot enter, each with the reason.

    The reason may be the kind of the benchmark, the protocol, a picture of ``samples`` that has no description, or only
    one label among the cases that constants are fitted on (``teaching``, None if they are not known yet).

    Raises:
        UserError: it is the arm under study, or the baseline.
    """
    blank = next((sample.id for sample in samples if sample.image is not None and not sample.described), "")
    labels = {SAFE[sample.gold] for sample in teaching or () if sample.subset != "control"}
    undescribed = f"{run.benchmark.name} does not say what its pictures show (case {blank} has no description)"
    absent = "unsafe" if True in labels else "safe"
    reasons: dict[str, str] = {}
    for arm, method in run.arms.items():
        can = abilities(method)
        if run.benchmark.kind != "yes_no" and can.yes_no_only and not fitting.only_shifts(method):
            reasons[arm] = NO_MARGIN
        elif run.protocol == "score" and can.unscored:
            reasons[arm] = f"protocol=score: {can.unscored}"
        elif blank and can.needs_description:
            reasons[arm] = f"{undescribed}; let the model describe them: method=verbalise"
        elif teaching is not None and can.fitted_to == "labels" and len(labels) < 2:
            reasons[arm] = f"its constant is fitted to safe and unsafe cases, and there is no {absent} case"
    for arm in (run.arm, "baseline"):
        if arm in reasons:
            raise UserError(f"{arm} cannot answer: {reasons[arm]}; choose another method, protocol or other cases")
    return reasons


def check_contrasts(run: Run, arms: Collection[str], kind: Kind) -> None:
    """Check ``run.contrasts`` against the ``arms`` that there are.

    Raises:
        UserError: an entry names other than two arms, or one that is not there, or the benchmark is of refusals.
    """
    for pair in run.contrasts:
        if kind != "yes_no":
            raise UserError("contrasts are only computed for yes/no benchmarks; remove contrasts")
        if len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(f"contrasts={run.contrasts}: an entry is two arms, as in [[a,b]] for a minus b")
        if "baseline" in pair:
            raise UserError(f"contrasts={run.contrasts}: every arm is compared with the baseline anyway; remove it")
        if unknown := [name for name, known in zip(pair, ({*arms, ALL}, arms), strict=True) if name not in known]:
            raise UserError(f"contrasts: there is no arm {unknown[0]!r}; known: {', '.join(arms)}; name one of them")


def check_untrained(arms: Mapping[str, Any], model: Any, samples: Sequence[Sample]) -> list[str]:
    """Check that no arm, and no adapter merged into ``model``, was trained on the cases before this study.

    Adapters and learned files carry hashes of their rows (``interp.tensor_file``). A case is a training row if its
    text and its picture are the same, even if the picture was re-encoded or resized.

    Returns:
        notes on arms whose training rows are not known.

    Raises:
        UserError: a case is a training row of an arm.
    """
    places = {arm: Path(folder) for arm, method in arms.items() if (folder := abilities(method).learned_in)}
    merged = Path(getattr(model, "path", "") or "no path").expanduser()
    if (merged / FILE).is_file():
        places[f"the model {model.name}"] = merged
    rows = {arm: read_rows(folder) for arm, folder in places.items()}
    hashes, notes = list(map(_hash, samples)) if any(rows.values()) else [], []
    for arm, trained in rows.items():
        if trained is None:
            notes.append(f"The training rows of {arm} ({places[arm]}) are unknown, so cases may be among them.")
            continue
        if count := sum(trained.overlap(hashes)):
            raise UserError(
                f"{count:,} of the {len(samples):,} cases are training rows of {arm} ({places[arm]}: same text and "
                "picture), so these answers prove nothing; evaluate on others, such as the rows of a column split"
            )
    return notes


def _hash(sample: Sample) -> bytes:
    """Return the hash of a case as a training row. A picture that cannot be opened is in no row."""
    try:
        return prompt_hash(prompt_of(sample, open_pictures(sample)))
    except BadImage:
        return UNREADABLE


def check_learning(
    learning: Mapping[str, TrainableMethod],
    benchmark: Benchmark,
    samples: Sequence[Sample],
    development: Sequence[Sample] | None,
) -> None:
    """Refuse arms that these cases cannot teach; ``learning`` are the methods that learn, by arm.

    Without ``development`` cases an arm learns in folds of the ``samples`` to be answered (``learning_folds``).
    That needs answers that are verdicts, and a licence that allows it (``untrainable`` says why not).

    Raises:
        UserError: names the first such arm; or the cases are too few for folds.
    """
    if not learning:
        return
    from mitigation.vrtuning.data import refuse_path

    splits = {"": development or ()}
    if development is None:
        arm = next(f"arm {name} ({type(method).__name__}) learns" for name, method in learning.items())
        if reason := getattr(benchmark, "untrainable", ""):
            raise UserError(f"{arm}, and {reason}; remove it, or learn it on another benchmark")
        if benchmark.kind != "yes_no":
            raise UserError(
                f"{arm} from a development split, and benchmark {benchmark.name} has none; remove it, or give a second "
                "table: benchmark.development=<file>"
            )
        folds = learning_folds(samples)
        splits = {
            f", without fold {fold}": [sample for sample in samples if folds[sample.id] != fold]
            for fold in sorted(set(folds.values()))
        }
    for split in splits.values():
        for path in (sample.image for sample in split if isinstance(sample.image, Path)):
            refuse_path(path)  # such as MOSSBench's pictures in a table of the user's
    for arm, method in learning.items():
        for where, split in splits.items():
            teaching = [sample for sample in split if sample.subset != "control"]
            if not teaching:
                raise UserError(
                    f"arm {arm} cannot learn{where}: no case is safe or unsafe; add cases with labels, or raise limit"
                )
            try:
                check_cases(method, [s.prompt for s in teaching], [SAFE[s.gold] for s in teaching])
            except UserError as error:
                raise UserError(f"arm {arm} cannot learn{where}: {error}") from error


def _check_endpoint(run: Run) -> None:
    """Refuse what a model behind an API cannot be asked.

    Raises:
        UserError: there are several processes, an arm needs more than an API gives, or the API cannot be used.
    """
    if run.endpoint is None:
        return
    if (size := Launch.current().size) > 1:
        raise UserError(
            f"WORLD_SIZE={size}: model {run.model.name} answers over an API, which one process asks with many "
            "requests at a time; start it with python -m experiments.run"
        )
    from experiments.api.model import check_methods

    absent = excluded_arms(run)
    entering = {arm: method for arm, method in run.arms.items() if arm not in absent}
    check_methods(entering, run.endpoint, scored=run.protocol == "score")
    run.endpoint.key()


def _check_questions(run: Run) -> None:
    """Check that judge and protocol fit the benchmark.

    Raises:
        UserError: they do not, or the judge cannot be used here.
    """
    name, kind = run.benchmark.name, run.benchmark.kind
    if run.protocol == "score" and kind != "yes_no":
        raise UserError(f"protocol=score reads Yes or No, and {name} asks for {kind} answers; remove protocol")
    if run.protocol == "score" and run.endpoint is not None and run.endpoint.logprobs == "off":
        raise UserError(
            f"protocol=score reads log-probabilities, and {run.model.name} gives none (model.logprobs=off); remove "
            "protocol, or set model.logprobs=auto"
        )
    if run.judge.kind != kind:
        raise UserError(
            f"judge {run.judge.name} reads {run.judge.kind} answers and {name} asks for {kind}; remove judge, or "
            "choose a judge of that kind in conf/judge"
        )
    if hasattr(run.judge, "check"):
        run.judge.check()
