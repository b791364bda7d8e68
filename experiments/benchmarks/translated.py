"""A benchmark with its questions in further languages, so that languages are compared on the same cases.

The translations come from a JSONL of ``id``, ``language`` and ``text``, and ``prompt`` where the words around the text
are to be translated too. Knows nothing of how they were made, or of the benchmark that they belong to.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.checks import clustered, manifest
from experiments.benchmarks.rows import Unfit, need, read_file
from experiments.types import Benchmark, Kind, Loaded, Sample
from interp.errors import UserError

ALL = "all"
Key = tuple[str, str]  # case id, language


class Wording(NamedTuple):
    """One translated question; ``prompt`` None where only the text is translated."""

    text: str
    prompt: str | None


@dataclass(frozen=True)
class Translated:
    """``of``'s cases as ``questions`` word them in ``language`` ("all": each language of the file).

    A translated case has the id ``<id>@<language>`` and the tags ``language`` and ``original`` (its id without the
    language), and keeps the cluster of the original, which the intervals resample. With ``originals`` the untranslated
    cases are asked too, tagged with ``original_language``: languages are then compared by case within one run. The
    wordings of a case stand beside each other, so that a limit does not part them. ``strict`` stops where a case has no
    translation.

    Raises:
        UserError: a language that is no short code.
    """

    of: Any  # a Benchmark; Hydra's types know no protocols
    questions: str
    language: str = ALL
    originals: bool = True
    original_language: str = "en"
    strict: bool = False
    name: str = "translated"

    def __post_init__(self) -> None:
        for code in (self.language, self.original_language):
            if not _is_code(code):
                raise UserError(f"language {code!r} is no code such as 'de' or 'pt-BR'; mend benchmark.language")

    @property
    def kind(self) -> Kind:
        """What the answers are read for: as in the benchmark that is translated."""
        return self.benchmark.kind

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark that is translated."""
        return self.of

    @property
    def untrainable(self) -> str:
        """Why nothing may be learned from it: as of the benchmark that is translated; "" where it may."""
        return str(getattr(self.benchmark, "untrainable", ""))

    @property
    def clusters_recur(self) -> bool:
        """Whether the splits share clusters by intention: as of the benchmark that is translated."""
        return bool(getattr(self.benchmark, "clusters_recur", False))

    def load(self) -> Loaded:
        """The cases in every language asked for.

        Raises:
            UserError: no case is translated, or under ``strict`` not every one.
        """
        return self._translated(self.benchmark.load())

    def development(self) -> Loaded | None:
        """The development split in the same languages, where the benchmark has one."""
        development = self.benchmark.development()
        return None if development is None else self._translated(development, strict=False)

    def _translated(self, loaded: Loaded, *, strict: bool | None = None) -> Loaded:
        source = Path(self.questions).expanduser().absolute()
        wordings, unfit = read_wordings(source)
        languages = sorted({language for _, language in wordings} if self.language == ALL else {self.language})
        asked: list[Sample] = []
        missing = dict(loaded.missing) if self.originals else {}
        for language in languages:
            missing |= {f"{case}@{language}": reason for case, reason in loaded.missing.items()}
        for sample in clustered(loaded.samples):  # here, so that a case and its translations stay together
            if self.originals:
                asked.append(_tagged(sample, sample.id, self.original_language))
            for language in languages:
                wording = wordings.get((sample.id, language))
                if wording is None:
                    reason = f"no translation: {source} has no line with id {sample.id!r} and language {language!r}"
                    missing[f"{sample.id}@{language}"] = reason
                else:
                    asked.append(_worded(sample, language, wording))
        known = {sample.id for sample in loaded.samples} | set(loaded.missing)
        for case, language in wordings:
            if case not in known and language in languages:
                unfit[f"{case}@{language}"] = f"unknown id: {source}: {self.benchmark.name} has no case {case!r}"
        missing |= unfit
        self._demand(asked, languages, loaded, missing, self.strict if strict is None else strict)
        return Loaded(asked, missing, manifest(asked), loaded.problems)

    def _demand(
        self, asked: Sequence[Sample], languages: Sequence[str], loaded: Loaded, missing: dict[str, str], strict: bool
    ) -> None:
        """Refuses a file that translates too little.

        Raises:
            UserError: nothing is translated, or under ``strict`` something is not.
        """
        lost = {case: reason for case, reason in missing.items() if case not in loaded.missing}
        if strict and lost:
            case, reason = next(iter(lost.items()))
            counted = f"{len(lost)} cases have no usable translation (first {case}: {reason})"
            raise UserError(f"{counted}; strict=true asks for all; mend {self.questions} or set strict=false")
        if not any("@" in sample.id and sample.tags["language"] in languages for sample in asked):
            rule = f"translates no case of {self.benchmark.name}; at least one is needed"
            raise UserError(f"{self.questions} {rule}; look at its ids and languages")


def read_wordings(source: Path) -> tuple[dict[Key, Wording], dict[str, str]]:
    """The translations by case and language, and the lines that cannot be used, with the reason.

    Raises:
        UserError: there is no such file.
    """
    wordings: dict[Key, Wording] = {}
    unfit: dict[str, str] = {}
    rows = read_file(source, ("id", "language", "text"), get="set benchmark.questions to a JSONL of id, language, text")
    for problem in rows.problems:
        unfit[f"{problem.place}@? ({problem.place})"] = f"unfit line: {source} {problem.place}: {problem.reason}"
    for place, row in rows.rows:
        case, language = place, "?"
        try:
            case = str(row.get("id", case))[:40]
            language = str(row.get("language", language))[:20]
            key = need(row, "id"), need(row, "language")
            if not _is_code(key[1]):
                raise Unfit("field 'language' is no code such as 'de' or 'pt-BR'")
            prompt = need(row, "prompt") if row.get("prompt") is not None else None
            wording = Wording(need(row, "text"), prompt)
            if key in wordings:
                raise Unfit("this id and language were there before; the first is kept")
            wordings[key] = wording
        except Unfit as error:
            unfit[f"{case}@{language} ({place})"] = f"unfit line: {source} {place}, id {case!r}: {error}"
    return wordings, unfit


def _worded(sample: Sample, language: str, wording: Wording) -> Sample:
    # The words around the text stay as they are: they end with it, in quotes or without.
    before, found, after = sample.prompt.rpartition(sample.text)
    prompt = wording.prompt or (f"{before}{wording.text}{after}" if found else wording.text)
    pair = None if sample.pair is None else f"{sample.pair}@{language}"
    worded = replace(sample, id=f"{sample.id}@{language}", text=wording.text, prompt=prompt, pair=pair)
    return _tagged(worded, sample.id, language)


def _tagged(sample: Sample, original: str, language: str) -> Sample:
    return replace(sample, tags={**sample.tags, "language": language, "original": original})


def _is_code(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*", text) is not None
