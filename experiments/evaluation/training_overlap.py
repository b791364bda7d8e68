"""Whether an arm that was trained before is evaluated on its own training rows, found before any weights load.

An adapter and a learned file carry hashes of their rows (``interp.tensor_file``). A case is a training row if its
text and its picture are the same, even if the picture was re-encoded or resized. What an arm learns within the study
itself is kept apart by ``experiments.benchmarks.disjoint``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments.benchmarks.images import BadImage, open_pictures
from experiments.config import Run
from experiments.evaluation.case_batches import prompt_of
from experiments.evaluation.cases import limited
from experiments.report.text import shortfall
from experiments.types import Loaded, Sample
from interp.errors import UserError
from interp.tensor_file import FILE, NO_PICTURE, ROW, prompt_hash, read_rows
from mitigation.method import abilities

ENTRY = "training_rows"  # of environment.json
OPTION = "skip_trained=true"
UNREADABLE = bytes(ROW - len(NO_PICTURE)) + NO_PICTURE  # is no row's hash
LEFT_OUT = "left out of every arm, since {arms} learned from them"


class Apart(NamedTuple):
    """The cases that no arm has learned from, and what is to be said of the arms' training rows."""

    loaded: Loaded
    notes: list[str]


def exclude_and_limit(run: Run, complete: Loaded, console: Console) -> tuple[Loaded, Loaded, dict[str, Any]]:
    """Return all cases, those within the run's limit, and what environment.json says of training rows.

    With ``run.skip_trained`` both are without training rows of the run's arms. Print what is left out, and whose
    training rows are not known.

    Raises:
        UserError: see ``exclude_trained``.
    """
    notes: list[str] = []
    if run.skip_trained:
        before = len(complete.missing)
        complete, notes = exclude_trained(run.arms, run.model, complete, skip=True)
        if len(complete.missing) > before:
            console.print(shortfall(len(complete.samples), complete.missing), highlight=False, markup=False)
    loaded = complete._replace(samples=limited(complete.samples, run.limit))
    if not run.skip_trained:
        loaded, notes = exclude_trained(run.arms, run.model, loaded, skip=False)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    return complete, loaded, {ENTRY: notes} if notes else {}


def exclude_trained(arms: Mapping[str, Any], model: Any, loaded: Loaded, *, skip: bool) -> Apart:
    """Return ``loaded`` without cases that an arm, or an adapter merged into ``model``, was trained on.

    These are listed under ``missing``.

    Raises:
        UserError: there are such cases and ``skip`` is false, or no other is left.
    """
    places = {arm: Path(folder) for arm, method in arms.items() if (folder := abilities(method).learned_in)}
    merged = Path(getattr(model, "path", "") or "no path").expanduser()
    if (merged / FILE).is_file():
        places[f"the model {model.name}"] = merged
    rows = {arm: read_rows(folder) for arm, folder in places.items()}
    hashes = list(map(_hash, loaded.samples)) if any(rows.values()) else []
    notes, learned_by = [], dict[str, list[str]]()
    for arm, trained in rows.items():
        if trained is None:
            notes.append(f"The training rows of {arm} ({places[arm]}) are unknown, so cases may be among them.")
            continue
        for sample, same in zip(loaded.samples, trained.overlap(hashes), strict=True):
            if same:
                learned_by.setdefault(sample.id, []).append(arm)
    others = [sample for sample in loaded.samples if sample.id not in learned_by]
    if learned_by and not (skip and others):
        arm = next(iter(learned_by.values()))[0]
        count = sum(arm in names for names in learned_by.values())
        way_out = (
            f"leave them out of every arm with {OPTION}, or evaluate on others" if others else "evaluate on others"
        )
        raise UserError(
            f"{count:,} of the {len(loaded.samples):,} cases are training rows of {arm} ({places[arm]}: same text and "
            f"picture), so these answers prove nothing; {way_out}"
        )
    missing = {case: LEFT_OUT.format(arms=" and ".join(names)) for case, names in learned_by.items()}
    return Apart(loaded._replace(samples=others, missing={**loaded.missing, **missing}), notes)


def _hash(sample: Sample) -> bytes:
    """Return the hash of a case as a training row. A picture that cannot be opened is in no row."""
    try:
        return prompt_hash(prompt_of(sample, open_pictures(sample)))
    except BadImage:
        return UNREADABLE
