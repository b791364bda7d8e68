"""Writes samples to disk as other tools read them: in MMSafeAware's published layout, or as VLMEvalKit's TSV.

Knows nothing of where the samples come from. In MMSafeAware's layout they are yes/no ones, and ids are dealt from the
published key. Scenarios are not kept: read back, a case has the scenario that the key gives its new id.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.benchmarks.images import data_url, open_image
from experiments.benchmarks.mmsafeaware import IMAGE_FOLDERS, KEY, PREFIX, UNPUBLISHED
from experiments.types import Sample
from interp.errors import UserError

LAST_OF_FIRST_FOLDER = 1100  # data/images holds the ids up to here, data/images2 the rest
# Subset and kind of attack → the published ids, those left out for which no image was ever published.
FREE = {
    kind: [case for case, of in KEY.items() if (of.subset, of.wrapper) == kind and int(case) not in UNPUBLISHED]
    for kind in dict.fromkeys((of.subset, of.wrapper) for of in KEY.values())
}
GOLD_OF_SUBSET = {"typical": "no", "attack": "no", "over_safety": "yes"}


def export_mmsafeaware(samples: Sequence[Sample], root: str | Path) -> Path:
    """Writes ``samples`` under ``root`` (absent or empty), controls left out, and returns the folder.

    Beside ``data/`` stands ``mapping.tsv``: exported id, original id, pair, cluster. No half-written export is left.

    Raises:
        UserError: a sample does not fit the published form, a range of ids is too small, or ``root`` is in use.
    """
    folder = Path(root).expanduser().absolute()
    exported = _deal_ids([sample for sample in samples if sample.subset != "control"])
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is in use; an export needs an absent or empty folder; name another one")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last step is one rename within one file system.
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            draft = Path(scratch) / folder.name
            _write(exported, draft)
            draft.rename(folder)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error}); an export needs a writable folder; name another"
        ) from error
    return folder


VLMEVALKIT = ("index", "image", "question", "answer", "category", "id")
ANSWERS = {"yes": "Yes", "no": "No"}


def export_vlmevalkit(samples: Sequence[Sample], path: str | Path) -> Path:
    """Writes ``samples`` into the TSV ``path``, a row a case, and returns it.

    ``image`` is the picture in base64 (PNG), empty without one; ``question`` is all that the model is asked;
    ``category`` is the subset, and ``id`` the case's own id beside the running ``index``. No half-written file is left.

    Raises:
        UserError: there is no sample, a picture cannot be opened, or the file cannot be written.
    """
    target = Path(path).expanduser().absolute()
    if not samples:
        raise UserError("no sample to export; a file has at least one; raise limit")
    if target.suffix != ".tsv" or target.exists():
        raise UserError(f"{target} is there already or does not end in .tsv; give the name of a new .tsv file")
    draft = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(VLMEVALKIT)
            for index, sample in enumerate(samples, start=1):
                answer = ANSWERS.get(sample.gold, sample.gold)
                shown = "" if sample.image is None else data_url(open_image(sample.image)).partition(",")[2]
                rows.writerow([index, shown, sample.prompt, answer, sample.subset, sample.id])
        draft.replace(target)
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror or error}); name another file") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def _deal_ids(samples: Sequence[Sample]) -> dict[str, Sample]:
    """Exported id → sample, ids ascending; within each range in the order of ``samples``."""
    if not samples:
        raise UserError("no typical, attack or over-safety sample to export; controls are left out; pass at least one")
    if len({sample.id for sample in samples}) < len(samples):
        raise UserError("two samples share an id; mapping.tsv needs one row an id; make the ids unique")
    groups: dict[tuple[Any, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_check(sample), []).append(sample)
    dealt: dict[str, Sample] = {}
    for kind, members in groups.items():
        if len(members) > len(free := FREE[kind]):
            counted = f"{len(members)} {' '.join(kind).strip()} samples for {len(free)} ids"
            raise UserError(
                f"{counted}; the published key has no more of this kind; export at most {len(free)} of them"
            )
        dealt.update(zip(free, members, strict=False))
    return {case: dealt[case] for case in sorted(dealt, key=int)}


def _check(sample: Sample) -> tuple[Any, str]:
    """Its kind, among those of ``FREE``.

    Raises:
        UserError: it does not fit the published form.
    """

    def unfit(value: str, rule: str, way_out: str) -> UserError:
        return UserError(f"sample {sample.id}: {value}; {rule}; {way_out}")

    kind: tuple[Any, str] = (sample.subset, sample.tags.get("wrapper", "") if sample.subset == "attack" else "")
    if kind not in FREE:
        known = ", ".join(sorted({wrapper for _, wrapper in FREE if wrapper}))
        raise unfit(f"{kind[0]} {kind[1]!r}", f"an attack's tag 'wrapper' is one of {known}", "set it")
    if sample.gold != GOLD_OF_SUBSET[sample.subset]:
        rule = f"{sample.subset} means gold {GOLD_OF_SUBSET[sample.subset]!r} in the published key"
        raise unfit(f"gold {sample.gold!r}", rule, "leave it out or change its subset")
    if sample.image is None:
        raise unfit("no image", "each exported case has one", "leave it out")
    if not sample.text.strip() or "\n" in sample.text or "\r" in sample.text:
        # Double quotes inside are safe: the outermost pair of the line delimits the sentence.
        raise unfit(repr(sample.text[:60]), "a sentence fills exactly one line", "write it without line breaks")
    return kind


def _write(exported: dict[str, Sample], folder: Path) -> None:
    data = folder / "data"
    first, second = IMAGE_FOLDERS
    for place in IMAGE_FOLDERS:
        (data / place).mkdir(parents=True)
    for case, sample in exported.items():
        assert sample.image is not None
        place = first if int(case) <= LAST_OF_FIRST_FOLDER else second
        open_image(sample.image).save(data / place / f"{case}.png")
    blocks = [f'{case}\n{PREFIX}\n"{sample.text}"\n\n\n' for case, sample in exported.items()]
    (data / "prompt.txt").write_text("".join(blocks), encoding="utf-8", newline="\n")
    with (folder / "mapping.tsv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(["exported_id", "id", "pair", "cluster"])
        rows.writerows([case, s.id, s.pair, s.cluster] for case, s in exported.items())
