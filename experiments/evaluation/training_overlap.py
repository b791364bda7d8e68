"""Whether an arm that was trained before is evaluated on its own training rows, found before any weights load.

An adapter and a learned file carry hashes of their rows (``interp.training_rows``). A case is such a row where its text
and its picture are, the picture also where it was re-encoded or resized. What an arm learns within the study itself is
kept apart by ``experiments.benchmarks.disjoint``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments.benchmarks.images import BadImage, open_image
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.report.text import shortfall
from experiments.types import Loaded, Sample
from interp.errors import UserError
from interp.tensor_file import read_rows
from interp.training_rows import FILE, NO_PICTURE, ROW, Overlap, TrainingRows, row_hash
from mitigation.method import abilities

ENTRY = "training_rows"  # of environment.json
OPTION = "skip_trained=true"
UNREADABLE = bytes(ROW - len(NO_PICTURE)) + NO_PICTURE  # is no row's hash
LEFT_OUT = "left out of every arm, since {arms} learned from them"


class Apart(NamedTuple):
    """The cases that no arm has learned from, and what is to be said of the arms' training rows."""

    loaded: Loaded
    notes: list[str]


def limited_apart(run: Run, complete: Loaded, console: Console) -> tuple[Loaded, Loaded, dict[str, Any]]:
    """All cases and those within the run's limit, without training rows of its arms, and what environment.json says.

    Prints what is left out, and whose training rows are not known.

    Raises:
        UserError: see ``apart_from_training``.
    """
    notes: list[str] = []
    before = len(complete.missing)
    if run.skip_trained:
        complete, notes = apart_from_training(run.arms, run.model, complete, skip=True)
    loaded = complete._replace(samples=limited(complete.samples, run.limit))
    if not run.skip_trained:
        loaded, notes = apart_from_training(run.arms, run.model, loaded, skip=False)
    left_out = [shortfall(len(complete.samples), complete.missing)] if len(complete.missing) > before else []
    for note in [*left_out, *notes]:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    return complete, loaded, {ENTRY: notes} if notes else {}


def apart_from_training(arms: Mapping[str, Any], model: Any, loaded: Loaded, *, skip: bool) -> Apart:
    """``loaded`` without cases that one of the ``arms`` was trained on, listed under ``missing``.

    Of a ``model`` that an adapter was merged into the rows are compared too.

    Raises:
        UserError: there are such cases and ``skip`` is false, or no other is left.
    """
    places = {arm: Path(place) for arm, method in arms.items() if (place := abilities(method).learned_in)}
    merged = Path(getattr(model, "path", "") or "no path").expanduser()
    if (merged / FILE).is_file():
        places[f"the model {model.name}"] = merged
    known = {arm: rows for arm, place in places.items() if (rows := read_rows(place)) is not None}
    notes = []
    if unknown := [f"{arm} ({place})" for arm, place in places.items() if arm not in known]:
        notes.append(
            f"The training rows of {', '.join(unknown)} are not known, so whether these cases are among them is not "
            "known either."
        )
    found = _overlaps(known, loaded.samples) if known else {}
    seen: dict[str, list[str]] = {}
    for arm, overlap in found.items():
        for sample, same in zip(loaded.samples, overlap.same, strict=True):
            if same:
                seen.setdefault(sample.id, []).append(arm)
    kept = [sample for sample in loaded.samples if sample.id not in seen]
    if seen and not (skip and kept):
        arm = next(arm for arm, overlap in found.items() if any(overlap.same))
        way_out = f"leave them out of every arm with {OPTION}, or evaluate on others" if kept else "evaluate on others"
        raise UserError(
            f"{sum(found[arm].same):,} of the {len(loaded.samples):,} cases are training rows of {arm} ({places[arm]}: "
            f"same text, same picture), and what was learned from a case proves nothing on it; {way_out}"
        )
    for arm, overlap in found.items():
        notes += _notes(arm, known[arm], overlap, seen, loaded.samples)
    missing = {case: LEFT_OUT.format(arms=" and ".join(by)) for case, by in seen.items()}
    return Apart(loaded._replace(samples=kept, missing={**loaded.missing, **missing}) if seen else loaded, notes)


def _notes(
    arm: str, rows: TrainingRows, overlap: Overlap, seen: Mapping[str, Sequence[str]], samples: Sequence[Sample]
) -> list[str]:
    """What is left to say of an arm whose rows are known."""
    notes = []
    pairs = zip(samples, overlap.picture_alone, strict=True)
    if alone := sum(picture for sample, picture in pairs if sample.id not in seen):
        notes.append(
            f"{alone:,} of the {len(samples) - len(seen):,} cases show a picture that {arm} was trained on under other "
            "words; they are evaluated."
        )
    if not rows.whole:
        notes.append(
            f"Of the {rows.examples:,} training rows of {arm} the first {len(rows.rows):,} different ones are on "
            "record; the cases were compared with these alone."
        )
    return notes


def _overlaps(known: Mapping[str, TrainingRows], samples: Sequence[Sample]) -> dict[str, Overlap]:
    """By arm; each picture is opened once. One that cannot be opened is no training row."""
    asked = []
    for sample in samples:
        try:
            image = None if sample.image is None else open_image(sample.image)
            asked.append(row_hash(sample.prompt, sample.text, image))
        except BadImage:
            asked.append(UNREADABLE)
    return {arm: rows.overlap(asked) for arm, rows in known.items()}
