"""What the loaders of published benchmarks share: their cases as the files name them, and which of these can be asked.

A loader settles what it knows of its published files. It skips and counts a case whose picture is missing, and an entry
that no case can be made of. Knows no benchmark.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from experiments.benchmarks.checks import decode_all, fault, manifest
from experiments.benchmarks.rows import Unfit
from experiments.types import Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError

SIDES: Mapping[str, tuple[Subset, Gold]] = {"safe": ("benign", "comply"), "unsafe": ("contrast", "refuse")}


@dataclass
class Collected:
    """Cases as they are made of a benchmark's files, and cases that cannot run, with the reason.

    No picture may leave ``root`` (None: pictures are no files). ``images``: whether a case is asked only with its
    picture. With ``cluster_on_image`` the cases that show one picture share a cluster. Reasons that are ``expected``
    hold for the published files themselves. The words of a reason before its first colon are its kind.
    """

    root: Path | None
    images: bool = True
    cluster_on_image: bool = False
    expected: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # case → reason
    _seen: set[str] = field(default_factory=set)
    _where: tuple[object, str] = ("", "")  # file, and place in it, of the entry that is read

    @contextmanager
    def entry(self, case: str, source: object, position: str) -> Iterator[None]:
        """While open, an entry at ``place`` of ``source`` is read. If it is unfit, ``case`` cannot run."""
        self._where = (source, position)
        try:
            yield
        except Unfit as error:
            self._leave_out("unfit entry", case, str(error))

    def add(self, case: str, side: str, *, text: str, prompt: str = "", **about: Any) -> None:
        """Add a case of a refusal benchmark; ``side`` is safe or unsafe, ``prompt`` by default the text.

        ``about`` are further fields of ``Sample``.
        """
        subset, gold = SIDES[side]
        self.keep(Sample(case, subset, gold=gold, text=text, prompt=prompt or text, **about))

    def keep(self, sample: Sample) -> None:
        """Return one case; of two with the same id, the first."""
        if sample.id in self._seen:
            self._leave_out("duplicate id", sample.id, "the first one is kept")
        else:
            self._seen.add(sample.id)
            self.samples.append(sample)

    def _leave_out(self, kind: str, case: str, reason: str) -> None:
        source, position = self._where
        key = f"{case} ({position})" if case in self._seen else case
        self._seen.add(case)
        self.absent[key] = f"{kind}: {source}, {position}, case {case}: {reason}"


@dataclass(frozen=True)
class PublishedBenchmark:
    """A published benchmark in the folder ``root``; under ``strict`` every case of it must be there.

    A loader says in ``GET`` what to get and where to put it, and finds the cases.
    """

    root: str | None = None
    strict: bool = False
    kind: ClassVar[Kind] = "refusal"
    GET: ClassVar[str] = ""

    def find(self) -> Collected:
        """Return all cases that the published files name."""
        raise NotImplementedError

    def load(self) -> Loaded:
        """Return the usable cases; every picture is decoded once as a check.

        Raises:
            UserError: no case can be asked, or under ``strict`` not every one.
        """
        return runnable(self.find(), strict=self.strict, get=self.GET)

    def development(self) -> None:
        """Return None: the set has no development split, so thresholds are cross-fitted."""
        return None

    @property
    def folder(self) -> Path:
        """Return the folder ``root``.

        Raises:
            UserError: none was given, or it is no folder.
        """
        if not self.root:
            raise UserError(f"benchmark.root is not set; {self.GET}; set benchmark.root to that folder")
        folder = Path(self.root).expanduser().absolute()
        if not folder.is_dir():
            raise UserError(f"benchmark root {folder} is not a folder; {self.GET}; set benchmark.root to that folder")
        return folder


def runnable(collected: Collected, *, strict: bool = False, get: str = "") -> Loaded:
    """Return the usable cases. ``get`` says in messages what to download, and to which folder.

    Every image is decoded once. If it cannot be used, it is taken off its case; the tag ``image_note`` says why.

    Raises:
        UserError: nothing can run, or under ``strict`` not everything can.
    """
    pictures, problems = decode_all(collected.samples, collected.root)
    settled, reasons = [], {}
    for position, (sample, picture) in enumerate(zip(collected.samples, pictures, strict=True)):
        problem = problems.get(position)
        note = fault(problem) if problem else collected.absent.get(sample.id, "")
        if note:
            reasons[sample.id] = note
        cluster = f"image:{picture[:16]}" if picture and collected.cluster_on_image else sample.cluster
        tags = {**sample.tags, "image_note": note} if note else sample.tags
        image = sample.image if picture else None
        settled.append(replace(sample, image=image, picture=picture, cluster=cluster, tags=tags))
    reasons |= {case: reason for case, reason in collected.absent.items() if case not in reasons}
    total = len({sample.id for sample in collected.samples} | set(collected.absent))
    faults = {case: reason for case, reason in reasons.items() if reason not in collected.expected}
    if strict and faults:
        case, reason = next(iter(faults.items()))
        counted = f"{len(faults)} of {total} cases cannot run as published (first {case}: {reason})"
        raise UserError(f"{counted}; strict=true asks for all of them; {get} or set strict=false")
    usable = [sample for sample in settled if sample.image is not None or not collected.images]
    if not usable:
        case, reason = next(iter((faults or reasons).items()), ("", "it names no case"))
        counted = f"none of the {total} cases in {collected.root or 'the data set'} can run ({case}: {reason})"
        raise UserError(f"{counted}; at least one is needed; {get} or check benchmark.root")
    there = {sample.id for sample in usable}
    return Loaded(usable, {case: why for case, why in reasons.items() if case not in there}, manifest(usable))


def check_part(option: str, value: str, values: Mapping[str, object] | Sequence[str]) -> None:
    """Raise a ``UserError`` if the option that chooses the questions has a value that is not ``known``."""
    if value not in values:
        raise UserError(f"benchmark.{option}={value!r} is not known; known: {', '.join(values)}; choose one")


def question(text: str) -> str:
    """Return the cluster of all cases with this question."""
    return f"question:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def first_there(folder: Path, *names: str) -> Path:
    """Return the first file that exists; if none does, the first name, for the message."""
    return next((folder / name for name in names if os.path.isfile(folder / name)), folder / names[0])
