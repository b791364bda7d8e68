"""Sentences of terminal and report: Jinja templates in ``templates/text/`` that read rows of the results table.

The templates decide nothing. A claim has one phrase (``experiments.metrics.claims.CLAIMS``).
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import ChainableUndefined, Environment, PackageLoader

from experiments.report.tables import MISSING, PLAIN, cell_text, fixed, markdown_text, share
from experiments.runs.results_table import Results, Row
from interp.checkpoints.config import ORGANISM


class _Missing(ChainableUndefined):
    """A value that a run does not have: false in a test, and an error if it is printed."""

    __str__ = ChainableUndefined._fail_with_undefined_error


def _in_one_line(value: Any) -> Any:
    """Return a printed value without line breaks: texts of models and data stay in their sentence."""
    return " ".join(value.splitlines()) if isinstance(value, str) else value


@cache
def _templates(finalize: Callable[[Any], Any] | None) -> Environment:
    templates = Environment(
        loader=PackageLoader("experiments.report", "templates/text"), undefined=_Missing, trim_blocks=True,
        lstrip_blocks=True, autoescape=False, finalize=finalize,
    )  # fmt: skip
    templates.filters |= {
        "share": share, "number": fixed, "count": count, "about": about, "change": change, "ends": ends,
        "value": value, "listed": listed, "json": _json, "markdown": lambda text: markdown_text(str(text)),
    }  # fmt: skip
    return templates


def _json(content: Mapping[str, Any]) -> str:
    content = {name: entry for name, entry in content.items() if not isinstance(entry, _Missing)}
    return json.dumps(content, indent=2, ensure_ascii=False, default=str)


def lines(template: str, **context: Any) -> list[str]:
    """Return the lines of a text template without empty ones; leading blanks are kept.

    Args:
        template: its name, without ``.txt.j2``.
        context: what it reads, mostly ``results`` (``Results``) and ``design`` (metrics.json).
    """
    text = _templates(_in_one_line).get_template(f"{template}.txt.j2").render(**context)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def page(template: str, **context: Any) -> str:
    """Return the text of a template, blank lines included; ``template`` is the name of its file."""
    return _templates(None).get_template(template).render(**context)


def headline(results: Results, design: Mapping[str, Any], arm: str | None = None) -> list[str]:
    """Return what a run says of its arm under study: the claim, its numbers, and what a decision would need."""
    return lines(f"headline_{design['kind']}", results=results, design=design, arm=arm or design["study"])


def count(number: float | None) -> str:
    """Return a whole number with separators: ``1,500``."""
    return MISSING if number is None else f"{round(number):,}"


def about(number: float) -> str:
    """Return a number with two significant digits: 103 is ``100``."""
    return f"{float(f'{number:.2g}'):,.0f}"


def value(row: Row | None) -> str:
    """Return the value of a row in its unit: ``17.3%``, ``0.661``, ``+4.5 points``."""
    text = cell_text(row).value
    return (
        text
        if text == MISSING or (row and row.quantity in PLAIN)
        else text + (" points" if row and row.against else "%")
    )


def ends(row: Row, *, name: bool = False) -> str:
    """Return the interval of a row in brackets: ``[−7.6, +8.8]``; with its name ``[97.5% interval −7.6 to +8.8]``.

    An end that is not 0 is not rounded to it, so that a reader sees on which side it lies.
    """
    if row.interval is None:
        return "[too few cases for an interval]"
    digits = PLAIN.get(row.quantity)
    scale, digits = (100.0, 1) if digits is None else (1.0, digits)

    def end(number: float) -> str:
        precision = digits
        while number and precision < digits + 2 and round(scale * number, precision) == 0:
            precision += 1
        return fixed(scale * number, precision, sign=bool(row.against))

    low, high = map(end, row.interval)
    return f"[{level(row)} interval {low} to {high}]" if name else f"[{low}, {high}]"


def level(row: Row) -> str:
    """Return the level of a row's interval in percent: ``97.5%``."""
    return f"{100 * (row.level or 0.95):.3g}%"


def change(row: Row | None, *, name: bool = False) -> str:
    """Return a difference with its interval: ``+4.5 points [−3.5, +12.4]``."""
    return MISSING if row is None else f"{value(row)} {ends(row, name=name)}"


def listed(names: Any) -> str:
    """Return names in a sentence: ``a, b and c``."""
    *first, last = [str(name) for name in names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


MADE_FOR = {
    "iconworld": ("llava", "smol", "thinking"),
    "iconworld_requests": ("smol", "thinking"),
}  # benchmark → organisms


OPTIONAL = (
    "thoughts",
    "no_picture",
    "batches",
    "refusal_margin",
    "same_text",
    "not_applicable",
)  # parts of metrics.json


class Summary(NamedTuple):
    """A run in words: what it says of its arm under study, and what limits it."""

    headline: list[str]
    notes: list[str]


def summary(results: Results, design: Mapping[str, Any], environment: Mapping[str, Any]) -> Summary:
    """Return the summary of a run, the same for terminal and report.

    Args:
        results: its results table.
        design: its metrics.json.
        environment: its environment.json.
    """
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    design = dict.fromkeys(OPTIONAL, MappingProxyType({})) | dict(design)
    context = {"results": results, "design": design, "environment": environment, "arm": design["study"]}
    organism, name = str(model.get("path") or ""), str(benchmark.get("name") or "the benchmark")
    organism = organism.removeprefix(ORGANISM) if organism.startswith(ORGANISM) else ""
    missing = benchmark.get("missing")
    about = {
        "benchmark": name,
        "foreign": bool(organism) and organism not in MADE_FOR.get(name, ()),
        "shortfall": shortfall(int(benchmark.get("complete") or 0), missing if isinstance(missing, Mapping) else {}),
    }
    people = [str(line) for line in environment.get("people") or ()]
    body = [*headline(results, design), *lines("contrasts", **context, **about)]
    return Summary([*body, *people], lines("notes", **context, **about))


def shortfall(samples: int, missing: Mapping[str, str]) -> str:
    """Return a sentence on the cases of a benchmark that cannot run here, and why; "" if all can."""
    if not missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in missing.values())
    why = ", ".join(f"{number:,} × {reason}" for reason, number in reasons.most_common())
    return f"{samples:,} of the benchmark's {samples + len(missing):,} cases can run here ({why})."
