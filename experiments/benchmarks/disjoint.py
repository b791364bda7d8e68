"""Whether cases to learn from are evaluated too, found before any weights load: a method that has seen the answers to
its test proves nothing.

Two cases are one where they share their id, or their picture and their text; they depend on each other where they share
a pair or a cluster. A cluster that was made of the cases themselves (``checks.clustered``) stands for the picture.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks.checks import Words, derived, message, picture_in
from experiments.types import Loaded, Problem, Sample
from interp.errors import UserError

BENCHMARK = Words(
    fault="cases to learn from are evaluated too",
    way_out="keep each case, pair and cluster on one side, or learn from the others alone: benchmark.skip_bad=true",
)


def disjoint(
    learned: Loaded,
    tested: Sequence[Sample],
    *,
    name: str,
    skip_bad: bool,
    folder: Path,
    words: Words = BENCHMARK,
    clusters: bool = True,
) -> Loaded:
    """The cases to learn from; with ``skip_bad`` those left out that are ``tested`` too, or depend on a tested one.

    Both were checked. Left-out cases are listed under ``missing``, and all stay evaluated. Without ``clusters``, those
    that the benchmark names itself may stand on both sides.

    Raises:
        UserError: there are such cases and ``skip_bad`` is false; or no other is left to learn from.
    """
    problems = shared(learned.samples, tested, clusters=clusters)
    if not problems:
        return learned
    both = set(problems)
    kept = [sample for place, sample in enumerate(learned.samples) if place not in both]
    if not (skip_bad and kept):
        way_out = "keep each case on one side; no other case is left to learn from" if skip_bad else words.way_out
        text = message(name, list(problems.values()), len(learned.samples), folder, words)
        raise UserError(f"{text}\n{way_out}")
    left = {f"{problem.case[:60]} ({problem.place})": f"skipped, {problem.reason}" for problem in problems.values()}
    return learned._replace(samples=kept, missing=learned.missing | left)


def shared(learned: Sequence[Sample], tested: Sequence[Sample], *, clusters: bool = True) -> dict[int, Problem]:
    """By position in ``learned``, what a case shares with one that is ``tested``."""
    known = _Traits.of(tested)
    found = {}
    for place, sample in enumerate(learned):
        if reason := known.shared_with(sample, clusters=clusters):
            found[place] = Problem(sample.place, sample.id, reason)
    return found


Asked = tuple[str, Sample]


class _Traits(NamedTuple):
    """What identifies the tested cases: trait → one that has it."""

    ids: dict[str, Sample]
    pairs: dict[str, Sample]
    clusters: dict[str, Sample]
    alone: dict[str, Sample]  # by picture, else text, where the cluster was made of these
    words: dict[str, Sample]  # by text, of those without a picture
    asked: dict[str, list[Asked]]  # by picture

    @classmethod
    def of(cls, tested: Iterable[Sample]) -> "_Traits":
        traits = cls({}, {}, {}, {}, {}, {})
        for sample in tested:
            traits.ids.setdefault(sample.id, sample)
            if sample.pair:
                traits.pairs.setdefault(sample.pair, sample)
            if derived(sample.cluster):
                traits.alone.setdefault(_shown(sample), sample)
            elif sample.cluster:
                traits.clusters.setdefault(sample.cluster, sample)
            if picture := picture_in(sample):
                traits.asked.setdefault(picture, []).append((f" {_plain(sample.text)} ", sample))
            else:
                traits.words.setdefault(_plain(sample.text), sample)
        return traits

    def shared_with(self, sample: Sample, *, clusters: bool) -> str:
        """In words; "" where there is nothing."""
        same = self._same(sample)
        named = sample.cluster if clusters and not derived(sample.cluster) else ""
        alone = _shown(sample) if derived(sample.cluster) else ""
        for what, one in (
            ("picture and text: are those", same[0] if same else None),
            ("id: is that", self.ids.get(sample.id)),
            ("pair: is that", self.pairs.get(sample.pair or "")),
            ("cluster: is that", self.clusters.get(named)),
            ("picture: is that", self.alone.get(alone)),
        ):
            if one is not None:
                return f"{what} of the evaluated case {one.id[:60]!r}{f' ({one.place})' if one.place else ''}"
        return ""

    def _same(self, sample: Sample) -> list[Sample]:
        """Those with its picture and text, be it in other words around it; it is only opened where a text is known."""
        if sample.image is None:
            here = self.words.get(_plain(sample.text))
            return [] if here is None else [here]
        prompt = f" {_plain(sample.text)}  {_plain(sample.prompt)} "
        if sample.picture:
            return [one for text, one in self.asked.get(sample.picture, ()) if text in prompt]
        asked = {picture: [one for text, one in ones if text in prompt] for picture, ones in self.asked.items()}
        return asked.get(picture_in(sample), []) if any(asked.values()) else []


def _shown(sample: Sample) -> str:
    return picture_in(sample) or f"text:{_plain(sample.text)}"


def _plain(text: str) -> str:
    """The words alone; the text itself where it has none."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text.strip()
