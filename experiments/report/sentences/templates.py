"""Findings in words, from tables: for each question a template, and what it says at each answer. Decides nothing.

A template names numbers of the finding's evidence, as ``str.format`` does. An *entry* (value, interval) or a plain
number has these formats: ``{x:.2}`` with so many digits and its interval, ``{x:+.2}`` signed, ``{x:%}`` a share in per
cent; of a difference with the wider interval in brackets ``{x:pts}`` in points. ``{answer}`` is the answer's wording.
Of the entry that decides, ``{few}`` (or ``{Few}``) says how few groups there are, ``{needed}`` how many cases it would
take, and ``{small}`` that it is by less than δ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import brief, fixed, percent
from experiments.report.sentences.wording import by_less, more_cases, too_few
from experiments.report.table import estimate, percentage


@dataclass(frozen=True)
class Wording:
    """How the finding on a question is said.

    Attributes:
        text: the template of the sentence.
        answers: the answer's wording, itself a template.
        decides: the number of the evidence that the answer rests on.
        counted: the one whose groups are counted where they are too few, if another.
        rates: whether δ of that number is told in points.
        sides: how many groups of cases it compares.
        optional: name → (number, template): what stands at ``{name}`` where that number is there.
        unknown: the whole sentence where the answer is CANNOT_TELL; empty where ``text`` says that too.
    """

    text: str
    answers: Mapping[Answer, str]
    decides: str = ""
    counted: str = ""
    rates: bool = True
    sides: int = 2
    optional: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unknown: str = ""

    def of(self, finding: Finding, **words: str) -> str:
        """The sentence on ``finding``; ``words`` are further names of its templates."""
        numbers = dict(finding.evidence) | {"about": finding.about} | words
        if self.unknown and finding.answer is Answer.CANNOT_TELL:
            return FORMAT.format(self.unknown, **numbers)
        entry = numbers.get(self.decides)
        if isinstance(entry, Mapping) and entry.get("value") is not None:
            moved = finding.answer in (Answer.ROSE, Answer.FELL)
            numbers |= {"small": by_less(entry, of_rates=self.rates) if moved else "",
                        "needed": more_cases(entry, of_rates=self.rates)}  # fmt: skip
        if self.decides and finding.answer is Answer.TOO_FEW:
            few = too_few(numbers[self.counted or self.decides], sides=self.sides)
            numbers |= {"few": few, "Few": few.capitalize()}
        for name, (number, template) in self.optional.items():
            there = numbers.get(number) is not None
            numbers[name] = FORMAT.format(template, **numbers) if there else ""
        answer = FORMAT.format(self.answers.get(finding.answer, ""), **numbers)
        return FORMAT.format(self.text, **numbers | {"answer": answer})


class _Numbers(Formatter):
    """``str.format`` with the formats of this module."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """``value``, an entry or a number, by ``format_spec``."""
        if format_spec == "pts":
            return brief(value)
        if format_spec == "%":
            level = value["value"] if isinstance(value, Mapping) else value
            if level is None:
                return "cannot be told"
            return str(percentage(value)) if isinstance(value, Mapping) else f"{percent(value, 0)}%"
        if format_spec.lstrip("+").startswith("."):
            digits, sign = int(format_spec.lstrip("+.")), format_spec.startswith("+")
            entry = isinstance(value, Mapping)
            return str(estimate(value, digits, sign=sign)) if entry else fixed(value, digits, sign=sign)
        return str(super().format_field(value, format_spec))


FORMAT = _Numbers()
