"""From the cases that a benchmark's files name to those that can run: one check and one wording for all benchmarks.

Knows nothing of answer keys or file layouts. ``absent`` maps the id of a case that cannot run to the reason; the words
before the first colon name the kind of reason, by which reasons are counted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.images import decode_all
from experiments.types import Loaded, Sample
from interp.errors import UserError


class ExaminedCases(NamedTuple):
    """Every case that was named and can be understood, with ``image`` None where there is none that can be read."""

    samples: list[Sample]
    absent: dict[str, str]
    manifest: str


def examined(
    samples: Sequence[Sample], absent: Mapping[str, str], root: Path | None, *, cluster_on_image: bool = False
) -> ExaminedCases:
    """Decodes every image once. What cannot be used is taken off its case and noted in the tag ``image_note``.

    With ``cluster_on_image`` the cases that show the same picture share a cluster.
    """
    checked = decode_all(samples, root)
    reasons = dict(absent)
    notes = dict(absent)
    for problem in checked.problems:
        kind = problem.fault.value.replace("_", " ")
        notes[problem.case] = f"image {kind}: {problem.file}: {problem.reason}"
        if problem.fault.blocks:
            reasons[problem.case] = notes[problem.case]
    settled = [
        _settled(sample, checked.digests.get(sample.id), notes.get(sample.id), cluster_on_image) for sample in samples
    ]
    return ExaminedCases(settled, reasons, checked.manifest)


def runnable(
    found: ExaminedCases,
    *,
    where: str,
    strict: bool,
    expected: Collection[str] = (),
    images: bool = True,
    get: str = "",
) -> Loaded:
    """The cases that can run; with ``images`` those without one cannot. ``strict`` forgives the reasons ``expected``.

    ``get`` says in messages what to get and where to put it.

    Raises:
        UserError: nothing can run, or under ``strict`` not everything can.
    """
    total = len({sample.id for sample in found.samples} | set(found.absent))
    faults = {case: reason for case, reason in found.absent.items() if reason not in expected}
    if strict and faults:
        case, reason = next(iter(faults.items()))
        counted = f"{len(faults)} of {total} cases cannot run as published (first {case}: {reason})"
        raise UserError(
            f"{counted}; strict=true asks for all of them; {get or f'complete {where}'} or set strict=false"
        )
    samples = [sample for sample in found.samples if sample.image is not None or not images]
    if not samples:
        case, reason = next(iter((faults or found.absent).items()), ("", "it names no case"))
        counted = f"none of the {total} cases in {where} can run ({case}: {reason})"
        raise UserError(f"{counted}; at least one is needed; {get or 'complete the folder'} or look at benchmark.root")
    kept = {sample.id for sample in samples}
    return Loaded(samples, {case: why for case, why in found.absent.items() if case not in kept}, found.manifest)


class Unfit(Exception):
    """An entry of a benchmark's file that no case can be made of; its text says why."""


def need(entry: Any, field: str, kind: type = str) -> Any:
    """The value of ``field`` in a JSON object or CSV row, of that type and not blank.

    Raises:
        Unfit: there is no such value.
    """
    if not isinstance(entry, Mapping):
        raise Unfit("not an object with fields")
    if field not in entry or entry[field] is None:
        raise Unfit(f"no field {field!r}")
    value = entry[field]
    if not isinstance(value, kind) or (isinstance(value, str) and not value.strip()):
        raise Unfit(f"field {field!r} is {str(value)[:40]!r}, which is no {'text' if kind is str else kind.__name__}")
    if isinstance(value, str) and value != whole(value):
        raise Unfit(f"field {field!r} holds half a character, which no file of UTF-8 can")
    return value


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can spell, replaced by '?'."""
    return text.encode("utf-8", "replace").decode("utf-8")


def readable_text(path: Path, way_out: str) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        UserError: there is no such file, or it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; the benchmark is read from it; {way_out}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); it must be UTF-8 text; {way_out}") from error


def _settled(sample: Sample, digest: str | None, note: str | None, cluster_on_image: bool) -> Sample:
    return replace(
        sample,
        image=sample.image if digest else None,
        picture=digest or "",
        cluster=f"image:{digest[:16]}" if digest and cluster_on_image else sample.cluster,
        tags={**sample.tags, "image_note": note} if note else sample.tags,
    )
