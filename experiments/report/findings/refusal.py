"""What was found on a refusal benchmark, in English: findings and metrics in, sentences out. Decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer
from experiments.metrics.refusal import findings as rules
from experiments.report.findings.limits import finding_of, limits
from experiments.report.numbers import change, percent, percent_interval, points, share, within

_NOTHING = "No change of refusals beyond chance was found"
_BENIGN_LESS, _BENIGN_MORE = "Benign requests are refused less often", "Benign requests are refused more often"
_CONTRAST_LESS, _CONTRAST_MORE = "armful ones less often", "armful ones more often"  # H or h
_SILENT = (Answer.NO_CHANGE, Answer.NOT_SHOWN, Answer.TOO_FEW, Answer.CANNOT_TELL)
_OPENINGS = {  # by what became of benign requests, and of harmful ones
    (Answer.FELL, Answer.FELL): "Less is refused, benign and harmful requests alike",
    (Answer.ROSE, Answer.ROSE): "More is refused, benign and harmful requests alike",
    (Answer.FELL, Answer.ROSE): f"{_BENIGN_LESS} and h{_CONTRAST_MORE}",
    (Answer.ROSE, Answer.FELL): f"{_BENIGN_MORE} and h{_CONTRAST_LESS}",
    **{(Answer.FELL, silent): _BENIGN_LESS for silent in _SILENT},
    **{(Answer.ROSE, silent): _BENIGN_MORE for silent in _SILENT},
    **{(silent, Answer.FELL): f"H{_CONTRAST_LESS}" for silent in _SILENT},
    **{(silent, Answer.ROSE): f"H{_CONTRAST_MORE}" for silent in _SILENT},
    **{(one, other): _NOTHING for one in _SILENT for other in _SILENT},
}
_UNMEASURED = "; what that costs in safety is not measured here, for want of harmful twins"
_SAFETY = (
    "; that harmful requests are not refused less often by more than {margin} points is {kept} "
    "(one-sided 95% bound {bound})"
)
_KEPT = {Answer.YES: "shown", Answer.NO: "not shown", Answer.CANNOT_TELL: "not shown"}
_UNKNOWN = (
    "Of {missing} of {n_of} SUBSET cases it is not known whether {arm} refused (no response, or the judge failed); "
    "with them its refusal rate could be anything from {low} to {high}."
)
_LIMITS = {
    **{f"{rules.MISSING}: {subset}": _UNKNOWN.replace("SUBSET", subset) for subset in ("benign", "contrast")},
    rules.EMPTY: "{count} cases without a response of {arm} are counted as refusals, which is the published convention "
    "and not ours.",
    rules.BLOCKED: "{count} requests that the provider blocked are counted as refusals of {arm}.",
    rules.PARTIAL: "{count} partial refusals of {arm} are counted as refusals; the other way of counting is beside.",
    rules.CEILING: "d′ of {arm} comes from rates close to 0 or 1, where a slight change of readiness moves it a lot.",
    rules.WIDE: "The interval of the change on benign cases is wider than 5 points: to find a change of 5 points, "
    "about {needed} benign cases are needed; {n} were compared.",
}
_WINS = (
    "not applicable: “wins” asks for more than a shift of the threshold, and an open answer has no margin to shift",
)


def worded(metrics: Mapping[str, Any], *, where: str = "", caveat: str = "") -> dict[str, Any]:
    """metrics.json: the metrics with ``summary``, ``caveats`` and every comparison's ``wins_reasons``.

    Args:
        metrics: of ``experiments.metrics.refusal.results.evaluate``.
        where: model and benchmark in words, for the summary's first sentence.
        caveat: a sentence that the caveats begin with.
    """
    compared = {arm: one | {"wins_reasons": list(_WINS)} for arm, one in metrics["comparisons"].items()}
    arm = metrics["study"]
    return dict(metrics) | {
        "comparisons": compared,
        "summary": sentences(metrics, arm, where=where),
        "caveats": caveats(metrics, arm, text=caveat),
    }


def sentences(metrics: Mapping[str, Any], arm: str, *, where: str = "") -> list[str]:
    """Exactly two sentences about ``arm``, with numbers, 95% intervals and denominators.

    Args:
        metrics: the contents of metrics.json (``arms``, ``comparisons`` and ``findings`` are read).
        arm: the arm under study; one without a comparison, such as the baseline, is described by itself.
        where: model and benchmark in words.
    """
    lead = f"{where}: " if where else ""
    block = metrics["arms"][arm]
    comparison = (metrics.get("comparisons") or {}).get(arm)
    if comparison is None:
        return [lead + _rates(arm, block), _by_type(block)]
    return [lead + _changes(arm, comparison), _conclusion(metrics, arm, comparison)]


def caveats(metrics: Mapping[str, Any], arm: str, *, text: str = "") -> list[str]:
    """What limits the summary, a sentence each: ``text`` first, then what the numbers themselves show."""
    apart = [f"{name}: {reason}." for name, reason in (metrics.get("not_applicable") or {}).items()]
    return ([text] if text else []) + limits(metrics, arm, _LIMITS, grouped=rules.WIDE) + apart


def correction(corrected: Mapping[str, Any]) -> list[str]:
    """The rates corrected for the judge's error (``experiments.metrics.judge_error``), a sentence an arm.

    Where the correction is unstable, one sentence that says why there is none.
    """
    if corrected["unstable"]:
        return [f"The rates are not corrected for the error of {corrected['judge']}: {corrected['unstable']}."]
    error = (
        f"Corrected for the error of {corrected['judge']} on XSTest (sensitivity {share(corrected['sensitivity'])}, "
        f"specificity {share(corrected['specificity'])})"
    )
    return [f"{error}, {arm} refuses {_corrected(rates)}." for arm, rates in corrected["arms"].items()]


def uncorrected(judge: str, languages: Sequence[str]) -> str:
    """That the error of a shipped judge says nothing of answers in other languages than English."""
    return (
        f"The rates are not corrected for the error of {judge}: it was measured in English alone, and some of the "
        f"requests are in {', '.join(languages)}."
    )


def learned(judge: str, known: int, asked: int) -> str:
    """That the judge has learned from answers to the benchmark's own prompts."""
    return (
        f"{judge} has learned from labelled answers to {known} of the {asked} prompts asked here, so it agrees better "
        "with people here than its measured error says, and better than it would on other prompts."
    )


def _corrected(rates: Mapping[str, Any]) -> str:
    parts = []
    for subset, rate in rates.items():
        beyond = ", where the formula leaves the scale" if rate["impossible"] else ""
        models = f"; by its error on single models {percent_interval(rate['by_model'])}" if rate["by_model"] else ""
        words = f"{percent(rate['rate'])}% [{percent_interval(rate['interval'])}{models}]"
        parts.append(f"{words} of {subset} requests{beyond}")
    return " and ".join(parts)


def _rates(arm: str, block: Mapping[str, Any]) -> str:
    parts = []
    for subset, words in (("benign", "benign"), ("contrast", "harmful")):
        n, n_of = block["n_by_subset"][subset]
        if n:
            parts.append(
                f"{share(block['refusal_rate'][subset])} of {n} {words} requests{within(block['intervals'][subset])}"
                + (f" (n of N: {n} of {n_of})" if n < n_of else "")
            )
    if not parts:
        return f"{arm} has no judged answer to any of {block['n_of']} cases."
    return f"{arm} refuses {' and '.join(parts)}."


def _by_type(block: Mapping[str, Any]) -> str:
    parts = [
        f"{type_} {share(cells['benign']['rate'])} of {cells['benign']['n']}"
        for type_, cells in block["by_type"].items()
        if cells["benign"] and cells["benign"]["n"]
    ]
    listed = "; ".join(parts) if parts else "there is no benign case"
    if block["refusal_rate"]["difference"] is None:
        return f"By type of stimulus, of benign requests: {listed}."
    difference = block["refusal_rate"]["difference"]
    low_high = block["intervals"]["difference"]
    entry = {"value": difference, "low": low_high and low_high[0], "high": low_high and low_high[1]}
    return (
        f"By type of stimulus, of benign requests: {listed}; harmful requests are refused {change(entry)} more often "
        "than benign ones, which is the part of its refusals that is of use."
    )


def _changes(arm: str, comparison: Mapping[str, Any]) -> str:
    delta, before = comparison["delta"], comparison["against"]
    if comparison["n"] == 0:
        return f"{arm} and {before} have no judged case in common (0 of {comparison['n_of']}): nothing can be compared."
    parts = []
    for subset, words in (("benign", "benign"), ("contrast", "harmful")):
        if entry := delta[subset]:
            parts.append(
                f"{share(entry['to'])} of {entry['n']} {words} requests are refused, against {share(entry['from'])} "
                f"under {before} ({change(entry)})"
            )
    return f"Under {arm}, {'; '.join(parts)}; {comparison['n']} of {comparison['n_of']} cases were compared."


def _conclusion(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    benign, contrast = (finding_of(metrics, question, arm).answer for question in (rules.BENIGN, rules.CONTRAST))
    flips = comparison["mcnemar"]
    numbers = (
        f"{flips['fixed']} cases fixed, {flips['broken']} broken, p after Holm's correction {flips['p_holm']:.3f}; "
        f"d′ {change(comparison['delta']['d_prime'], of_rates=False)}"
    )
    safety = ""
    if contrast is Answer.CANNOT_TELL:
        safety = _UNMEASURED
    elif contrast in _SILENT:
        kept = _KEPT[finding_of(metrics, rules.SAFETY_KEPT, arm).answer]
        margin, bound = f"{100 * metrics['method']['safety_margin']:g}", comparison["contrast_lower_bound"]
        bound = "not available" if bound is None else points(bound)
        safety = _SAFETY.format(margin=margin, kept=kept, bound=bound)
    return f"{_OPENINGS[benign, contrast]} ({numbers}){safety}."
