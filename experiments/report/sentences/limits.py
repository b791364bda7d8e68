"""What the sentences of yes/no and refusal benchmarks share: metrics.json in words, what limits an arm's numbers."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding, found
from experiments.report.numbers import share


def limit_sentences(
    metrics: Mapping[str, Any],
    *,
    sentences: Callable[[Mapping[str, Any], str], list[str]],
    caveats: Callable[[Mapping[str, Any], str], list[str]],
    reasons: Callable[[Mapping[str, Any], str], list[str]],
) -> dict[str, Any]:
    """metrics.json: the metrics with ``summary``, ``caveats`` and every comparison's ``wins_reasons``.

    Args:
        metrics: of a benchmark's ``results.evaluate``.
        sentences: the summary of an arm.
        caveats: what limits it.
        reasons: the conditions of a win, and whether an arm meets them.
    """
    compared = {
        arm: comparison | {"wins_reasons": reasons(metrics, arm)} for arm, comparison in metrics["comparisons"].items()
    }
    arm = metrics["study"]
    words = {"summary": sentences(metrics, arm), "caveats": caveats(metrics, arm)}
    return dict(metrics) | {"comparisons": compared} | words


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
    grouped: str = "",
    values: Callable[[Finding], dict[str, str]] | None = None,
) -> list[str]:
    """A sentence for each limit that holds for ``arm``; ``templates`` are by question.

    Args:
        grouped: the question, if any, whose numbers are large enough for thousands separators.
        values: what the templates name beyond ``arm`` and the evidence.
    """
    notes = []
    for question, template in templates.items():
        limit = finding_of(metrics, question, arm)
        if limit.answer is Answer.YES:
            more = values(limit) if values else {}
            notes.append(template.format(arm=arm, **_evidence(limit, "," if question == grouped else ""), **more))
    return notes


def _evidence(limit: Finding, spec: str) -> dict[str, str]:
    return {
        name: share(value) if name in ("low", "high") else "" if value is None else format(value, spec)
        for name, value in limit.evidence.items()
    }
