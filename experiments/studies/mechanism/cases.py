"""The cases of the study: all that the baseline answered; among them failures, matched successes and twins.

They depend only on ids, tags, verdicts and the seed. No model is involved.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from experiments.evaluation.matching import answered, match_failures
from experiments.metrics.case_groups import all_pairs, family_names, hash_key, twins
from experiments.metrics.estimates import CONCEPT, Resamples
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError

ARM = "baseline"
QUESTIONS_TRIED = 4  # other questions of equal length that may be tried for one case


@dataclass(frozen=True)
class AnsweredCases:
    """The scored cases with an image that the baseline answered, in the benchmark's order."""

    samples: tuple[Sample, ...]
    verdicts: tuple[str | None, ...]

    @property
    def safe(self) -> Bool[np.ndarray, " case"]:
        """The truth."""
        return np.array([sample.gold == "yes" for sample in self.samples])

    @property
    def says_yes(self) -> Bool[np.ndarray, " case"]:
        """The model's verdict is Yes; no verdict counts as No."""
        return np.array([verdict == "yes" for verdict in self.verdicts])

    @property
    def failed(self) -> Bool[np.ndarray, " case"]:
        """The verdict differs from the truth."""
        return np.array([v != s.gold for v, s in zip(self.verdicts, self.samples, strict=True)])

    @property
    def clusters(self) -> list[str]:
        """The units that the bootstrap resamples and that probes hold out."""
        return [sample.cluster for sample in self.samples]

    @property
    def questions(self) -> np.ndarray:
        """The full text of each prompt: cases with the same question differ only in their image."""
        return np.array([sample.prompt for sample in self.samples])

    @property
    def templates(self) -> np.ndarray:
        """The family of each sentence: its template where the benchmark names it, else as proposed from the texts."""
        texts, tags = [sample.text for sample in self.samples], [sample.tags for sample in self.samples]
        return np.array(family_names(texts, tags))

    @property
    def things(self) -> np.ndarray | None:
        """What each picture shows: the tag ``concept``, else the benchmark's words, else ""; None where it has none."""
        column = self.tag(CONCEPT)
        if column is None:
            column = np.array([sample.described.strip().rstrip(".").casefold() for sample in self.samples])
        return column if (column != "").any() else None

    @property
    def kinds(self) -> np.ndarray:
        """What each picture shows (``things``), else the picture itself."""
        things = [""] * len(self.samples) if self.things is None else self.things.tolist()
        pictures = [sample.picture or sample.cluster for sample in self.samples]
        return np.array([thing or picture for thing, picture in zip(things, pictures, strict=True)])

    @property
    def within_sentences(self) -> Int[np.ndarray, "pair 2"]:
        """Every pair of a safe and an unsafe case that were asked the same question."""
        return all_pairs(np.unique(self.questions, return_inverse=True)[1], self.safe)

    def resamples(self, *, draws: int, seed: int) -> Resamples:
        """Over clusters, families of sentences and, where that is known, what the pictures show."""
        tags = [dict(sample.tags) for sample in self.samples]
        if self.things is not None:
            tags = [named | {CONCEPT: kind} for named, kind in zip(tags, self.kinds.tolist(), strict=True)]
        texts = [sample.text for sample in self.samples]
        return Resamples.from_cases(self.clusters, texts, tags, draws=draws, seed=seed)

    def tag(self, name: str) -> np.ndarray | None:
        """Return the values of a tag; None where a case does not have it."""
        values = [sample.tags.get(name) for sample in self.samples]
        return None if any(value is None for value in values) else np.array(values)

    def in_subset(self, subset: str) -> Bool[np.ndarray, " case"]:
        """True for the cases of ``subset``."""
        return np.array([sample.subset == subset for sample in self.samples])


@dataclass(frozen=True)
class Selection:
    """Cases of the subset with the most failures: failures, matched successes, twins (same sentence, opposite truth).

    All are indices into ``AnsweredCases``. ``twin[i]`` belongs to ``members[i]`` and is −1 where there is no twin.
    """

    subset: str
    failures: Int[np.ndarray, " failure"]
    successes: Int[np.ndarray, " success"]
    twin: Int[np.ndarray, " member"]
    failures_in_run: int
    successes_in_run: int

    @property
    def members(self) -> Int[np.ndarray, " member"]:
        """Failures, then matched successes."""
        return np.concatenate([self.failures, self.successes])

    @property
    def everyone(self) -> Int[np.ndarray, " case"]:
        """Members and twins, each once, in ascending order."""
        return np.unique(np.concatenate([self.members, self.twin[self.twin >= 0]]))

    def counts(self) -> dict[str, Any]:
        """Return how many cases were selected, and from how many."""
        return {
            "subset": self.subset,
            "failures_in_subset": self.failures_in_run,
            "successes_in_subset": self.successes_in_run,
            "failures_looked_at": len(self.failures),
            "successes_looked_at": len(self.successes),
            "looked_at": len(self.everyone),
        }


def answered_cases(samples: Sequence[Sample], records: Sequence[Mapping[str, Any]]) -> AnsweredCases:
    """Return the scored cases with an image that the baseline answered.

    Raises:
        UserError: there is none.
    """
    verdicts = {record["case"]: record["verdict"] for record in records if record["arm"] == ARM}
    scored = [s for s in answered(samples, records, arm=ARM) if s.subset in SCORED_SUBSETS]
    if not scored:
        raise UserError("no scored case with a picture was answered; there is nothing to look into; check the limit")
    return AnsweredCases(tuple(scored), tuple(verdicts[sample.id] for sample in scored))


def select(
    cases: AnsweredCases, records: Sequence[Mapping[str, Any]], *, limit: int | None, seed: int
) -> Selection | None:
    """Return at most ``limit`` failures of the subset with the most failures, and their matches; None without one."""
    matched = match_failures(cases.samples, records, arm=ARM, limit=limit, seed=seed)
    subset = max(matched, key=lambda name: matched[name].failures)
    if not matched[subset].failures:
        return None
    index_of = {sample.id: index for index, sample in enumerate(cases.samples)}
    chosen = matched[subset]
    failures, successes = (
        np.array([index_of[case.sample.id] for case in chosen.cases if case.failed == failed], dtype=int)
        for failed in (True, False)
    )
    twin = twin_indices(cases, seed=seed)[np.concatenate([failures, successes])]
    return Selection(subset, failures, successes, twin, chosen.failures, chosen.successes)


def twin_indices(cases: AnsweredCases, *, seed: int) -> Int[np.ndarray, " case"]:
    """Return ``experiments.metrics.case_groups.twins``, −1 without a twin."""
    return np.array([-1 if index is None else index for index in twins(cases.samples, seed=seed)])


def other_questions(
    samples: Sequence[Sample],
    verdicts: Mapping[str, str | None],
    selected: Sequence[Sample],
    *,
    tokens: Callable[[str], int],
    seed: int,
) -> list[list[str]]:
    """Return up to ``QUESTIONS_TRIED`` questions of as many tokens, with the other verdict, for each selected case.

    Args:
        samples: the cases whose questions may be taken.
        verdicts: of ``samples``, by id; a question without a verdict is not taken.
        tokens: the number of tokens of a text.
    """
    length = {prompt: tokens(prompt) for prompt in {sample.prompt for sample in (*samples, *selected)}}
    questions = []
    for case in selected:
        others = {
            other.prompt
            for other in samples
            if verdicts.get(other.id) not in (None, verdicts.get(case.id))
            and other.prompt != case.prompt
            and length[other.prompt] == length[case.prompt]
        }
        questions.append(sorted(others, key=lambda prompt: hash_key(seed, case.id, prompt))[:QUESTIONS_TRIED])
    return questions
