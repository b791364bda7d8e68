"""What is said of a difference or a finding, in words; ``metrics.findings.statement`` decides it."""

import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.findings import SMALL, Answer, Finding, found, stated, within
from experiments.metrics.yes_no.comparison import ALL
from experiments.metrics.yes_no.quantities import FEWEST_BEYOND, reads
from experiments.report.numbers import share
from experiments.report.table import Cell, change


class Said(NamedTuple):
    """What is said of an answer: a sign, the icon that the page draws for it, a few words, and a clause."""

    sign: str
    icon: str
    word: str
    clause: str


SAID = {
    Answer.ROSE: Said("▲", "up", "rose", "rose{small}"),
    Answer.FELL: Said("▼", "down", "fell", "fell{small}"),
    Answer.NO_CHANGE: Said("=", "level", "no change of more than {delta}", "no {noun} of more than {delta}"),
    Answer.NOT_SHOWN: Said("?", "open", "not shown", "a {noun} is not shown{needed}"),
    Answer.TOO_FEW: Said("…", "few", "too few", "{few}"),
    Answer.CANNOT_TELL: Said("–", "none", "cannot be told", "whether there is a {noun} cannot be told"),
}
INTERVALS = (
    "In brackets: of an arm's own numbers 95% intervals, each by itself. Of paired differences the intervals that "
    "decide what is said: 97.5% for the question that the run was begun for (about {study}), simultaneous over all "
    "else that the run says; of quantities of which nothing is said, 95% by themselves."
)


def statement_text(
    entry: Mapping[str, Any] | None,
    *,
    answer: Answer | None = None,
    of_rates: bool = True,
    noun: str = "change",
    sides: int = 2,
    **instead: str,
) -> str:
    """What is said of ``entry``, a change as metrics.json keeps it: "rose", "a change is not shown (…)", and so on.

    Args:
        answer: a rule's answer in place of the entry's own statement.
        of_rates: whether δ is told in points; else as a plain number.
        noun: what the entry is, such as "difference".
        sides: how many groups of cases it compares.
        instead: templates in place of ``SAID``'s clauses, by the answer's name: ``rose``, ``too_few``. They may name
            ``{small}``, that it is by less than δ, ``{delta}``, ``{needed}`` (how many cases it would take), ``{few}``.
    """
    if answer is None:
        answer = stated(entry)
    words = {"noun": noun, "delta": _small(of_rates=of_rates)}
    if entry is not None:
        moved = answer in (Answer.ROSE, Answer.FELL)
        words |= {"small": by_less(entry, of_rates=of_rates) if moved else "",
                  "needed": more_cases(entry, of_rates=of_rates) if answer is Answer.NOT_SHOWN else "",
                  "few": too_few(entry, sides=sides) if answer is Answer.TOO_FEW else ""}  # fmt: skip
    return instead.get(answer.name.lower(), SAID[answer].clause).format(**words)


def deciding(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """``entry`` with the interval by which it is judged, in place of its own 95% interval."""
    return {**entry, **entry.get("decides", {})}


def scope(metrics: Mapping[str, Any]) -> str:
    """What statements are of where sentences are fixed: "these 9 sentences"; empty where they are a sample."""
    sentences = (metrics.get("method") or {}).get("sentences") or {}
    if not sentences.get("fixed"):
        return ""
    count = sentences["families"]
    return "this one sentence" if count == 1 else f"these {count} sentences"


def scoped(metrics: Mapping[str, Any], sentence: str) -> str:
    """``sentence``, told of what it is where sentences are fixed."""
    return f"For {of}: {sentence}" if (of := scope(metrics)) else sentence


def exploratory(metrics: Mapping[str, Any]) -> list[str]:
    """A sentence on what is compared beyond the family of comparisons that the run recorded when it began."""
    later = metrics.get("exploratory") or {}
    named = [str(later["study"])] if later.get("study") else []
    named += [contrast_name(*pair) for pair in later.get("contrasts") or ()]
    if not named:
        return []
    verb = "was" if len(named) == 1 else "were"
    return [
        f"Exploratory: {', '.join(named)} {verb} not among the comparisons that this run was begun for and may have "
        "been chosen after results were seen; confirm on cases that nobody has looked at."
    ]


def contrast_name(arm: str, other: str, metrics: Mapping[str, Any] | None = None) -> str:
    """A contrast as tables call it, with "(exploratory)" where the first family of ``metrics`` lacks it."""
    pair, every = [arm, other], [ALL, other]
    later, first = (((metrics or {}).get(key) or {}).get("contrasts") or () for key in ("exploratory", "family"))
    stamp = " (exploratory)" if (pair in later or every in later) and pair not in first else ""
    return f"{'every arm' if arm == ALL else arm} − {other}{stamp}"


def of_sentences(metrics: Mapping[str, Any]) -> list[str]:
    """What the sentences of the cases allow to be said, and whether their column ``template`` contradicts them."""
    sentences, notes = (metrics.get("method") or {}).get("sentences") or {}, []
    if of := scope(metrics):
        notes.append(
            f"All cases are of {of}, and intervals allow for other pictures with {'it' if 'one' in of else 'them'}: "
            f"nothing is said of other sentences, which takes {FEWEST} or more."
        )
    if differ := sentences.get("contradiction"):
        one, other = (textwrap.shorten(text, 80, placeholder=" …") for text in differ)
        notes.append(
            f"The column template tells apart texts that are alike (“{one}” and “{other}”); it is followed, and "
            "intervals are too narrow if they are one sentence."
        )
    return notes


def by_less(entry: Mapping[str, Any], *, of_rates: bool = True) -> str:
    """The words " by less than 2 points" where a change that rose or fell is that small, else empty."""
    return f" by less than {_small(of_rates=of_rates)}" if within(entry) else ""


def too_few(entry: Mapping[str, Any], *, sides: int = 2) -> str:
    """Why nothing is concluded: how many clusters (or pairs) there are, and how many it takes.

    At an operating point the count that is too small may be that of the unsafe requests. ``sides`` is 1 where the
    entry does not compare two groups of cases.
    """
    if (caught := entry.get("caught")) and not reads(unsafe := entry["n_unsafe"], caught):
        takes = math.ceil(round(FEWEST_BEYOND / min(caught, 1 - caught), 6))
        return (
            f"too few cases to tell ({unsafe} unsafe request{'s' * (unsafe != 1)}; a comparison where {share(caught)} "
            f"of them are caught takes {takes})"
        )
    groups = entry["clusters"]
    counted = f"{groups} independent group{'' if groups == 1 else 's'} of cases"
    return f"too few cases to tell ({counted}{' on the smaller side' * (sides > 1)}; it takes {FEWEST})"


def more_cases(entry: Mapping[str, Any], *, of_rates: bool = True) -> str:
    """What a change of 5 points would take, in brackets; empty where it is unknown or as much was there."""
    if not entry.get("needed") or entry["needed"] <= entry["n"]:
        return ""
    five = "5 points" if of_rates else ".05"
    return f" (to show one of {five} would take about {takes(entry)})"


def takes(entry: Mapping[str, Any]) -> str:
    """What ``needed`` counts: "100 sentences with 28 cases each (70 to 200); there were 24", or cases."""
    of = entry.get("needed_of")
    if of is None:  # of an earlier version
        return f"{entry['needed']:,} cases; there were {entry['n']:,}"
    each = f" with {of['each']:,.0f} cases each" if of["unit"] == "sentences" else ""
    number, low, high = (rounded(of[key]) for key in ("number", "low", "high"))
    return f"{number:,} {of['unit']}{each} ({low:,} to {high:,}); there were {of['had']:,}"


def rounded(count: int) -> int:
    """``count`` to two figures, as well as it is known."""
    return int(float(f"{count:.2g}"))


def word(entry: Mapping[str, Any] | None, *, of_rates: bool = True) -> str:
    """The statement on ``entry`` in a few words, for tables and brackets."""
    return SAID[stated(entry)].word.format(delta=_small(of_rates=of_rates))


def compared(heading: str, entry: Mapping[str, Any] | None, *, digits: int | None = None) -> dict[str, Cell]:
    """Two cells of a record: a difference under ``heading``, and what is said of it, by the interval that decides it.

    In points, or as a plain number where ``digits`` are given.
    """
    shown = entry and deciding(entry)
    return {heading: change(shown, digits=digits), f"{heading}: said": Cell(word(shown, of_rates=digits is None))}


def _small(*, of_rates: bool) -> str:
    return f"{100 * SMALL:g} points" if of_rates else f"{SMALL:g}".removeprefix("0")


def finding_of(metrics: Mapping[str, Any], question: str, arm: str) -> Finding:
    """The finding of metrics.json that answers ``question`` about ``arm``, which every finished comparison has."""
    finding = found(metrics["findings"], question, arm)
    assert finding is not None, (question, arm)
    return finding


def conditions(
    met: Mapping[str, bool], decided: str, templates: Mapping[str, str], numbers: Mapping[str, str]
) -> list[str]:
    """A sentence for each condition of a win, by question: whether it is met, and the one that ``decided`` marked."""
    return [
        f"{'met' if met[question] else 'not met'}{' (this decides)' if question == decided else ''}: "
        + template.format(**numbers)
        for question, template in templates.items()
    ]


def limits(
    metrics: Mapping[str, Any],
    arm: str,
    templates: Mapping[str, str],
    *,
    values: Callable[[Finding], dict[str, str]] | None = None,
) -> list[str]:
    """A sentence for each limit that holds for ``arm``; ``templates`` are by question.

    Args:
        values: what the templates name beyond ``arm`` and the evidence.
    """
    notes = []
    for question, template in templates.items():
        limit = finding_of(metrics, question, arm)
        if limit.answer is Answer.YES:
            more = values(limit) if values else {}
            notes.append(template.format(arm=arm, **_evidence(limit), **more))
    return notes


def _evidence(limit: Finding) -> dict[str, str]:
    return {
        name: share(value) if name in ("low", "high") else "" if value is None else str(value)
        for name, value in limit.evidence.items()
    }
