"""metrics.json of a refusal benchmark → sentences for a reader who has not seen the project. Knows no files."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import change, points, share, within

_BENIGN = {"fell": "benign requests are refused less often", "rose": "benign requests are refused more often"}
_CONTRAST = {"fell": "harmful ones less often", "rose": "harmful ones more often"}


def sentences(metrics: Mapping[str, Any], arm: str, *, where: str = "") -> list[str]:
    """Exactly two sentences about ``arm``, with numbers, 95% intervals and denominators.

    Args:
        metrics: the contents of metrics.json (``arms`` and ``comparisons`` are read).
        arm: the arm under study; one without a comparison, such as the baseline, is described by itself.
        where: model and benchmark in words.
    """
    lead = f"{where}: " if where else ""
    block = metrics["arms"][arm]
    comparison = (metrics.get("comparisons") or {}).get(arm)
    if comparison is None:
        return [lead + _rates(arm, block), _by_type(block)]
    return [lead + _changes(arm, comparison), _conclusion(arm, comparison, metrics["method"]["safety_margin"])]


def caveats(metrics: Mapping[str, Any], arm: str, *, text: str = "") -> list[str]:
    """What limits the summary, a sentence each: ``text`` first, then what the numbers themselves show."""
    block, comparison = metrics["arms"][arm], (metrics.get("comparisons") or {}).get(arm)
    found = [text] if text else []
    for subset, name in (("benign", "benign"), ("contrast", "contrast")):
        n, n_of = block["n_by_subset"][subset]
        if n < n_of:
            low, high = block["bounds"][subset]
            found.append(
                f"Of {n_of - n} of {n_of} {name} cases it is not known whether {arm} refused (no response, or the "
                f"judge failed); with them its refusal rate could be anything from {share(low)} to {share(high)}."
            )
    if metrics["method"]["empty_as_refusal"] and block["no_response"]:
        found.append(
            f"{block['no_response']} cases without a response of {arm} are counted as refusals, which is the published "
            "convention and not ours."
        )
    elif blocked := block["outcomes"]["status"].get("provider_blocked", 0):
        found.append(f"{blocked} requests that the provider blocked are counted as refusals of {arm}.")
    if partial := block["outcomes"]["verdict"].get("partial", 0):
        found.append(
            f"{partial} partial refusals of {arm} are counted as refusals; the other way of counting is beside."
        )
    if block["near_ceiling"]:
        found.append(
            f"d′ of {arm} comes from rates close to 0 or 1, where a slight change of readiness moves it a lot."
        )
    if comparison and comparison["cases_needed_for_5_points"]:
        found.append(
            f"The interval of the change on benign cases is wider than 5 points: to find a change of 5 points, about "
            f"{comparison['cases_needed_for_5_points']:,} benign cases are needed; "
            f"{comparison['delta']['benign']['n']:,} were compared."
        )
    for name, reason in (metrics.get("not_applicable") or {}).items():
        found.append(f"{name}: {reason}.")
    return found


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


def _conclusion(arm: str, comparison: Mapping[str, Any], margin: float) -> str:
    benign, contrast = comparison["conclusion"].split("_")
    flips = comparison["mcnemar"]
    numbers = (
        f"{flips['fixed']} cases fixed, {flips['broken']} broken, p after Holm's correction {flips['p_holm']:.3f}; "
        f"d′ {change(comparison['delta']['d_prime'], of_rates=False)}"
    )
    found = [words for words in (_BENIGN.get(benign), _CONTRAST.get(contrast)) if words]
    if not found:
        text = "No change of refusals beyond chance was found"
    elif benign == contrast:
        text = f"{'More' if benign == 'rose' else 'Less'} is refused, benign and harmful requests alike"
    else:
        text = " and ".join(found)
        text = text[0].upper() + text[1:]
    return f"{text} ({numbers}){_safety(comparison, contrast, margin)}."


def _safety(comparison: Mapping[str, Any], contrast: str, margin: float) -> str:
    if contrast == "none":
        return "; what that costs in safety is not measured here, for want of harmful twins"
    if contrast in ("fell", "rose"):
        return ""
    kept = "shown" if comparison["safety_kept"] else "not shown"
    return (
        f"; that harmful requests are not refused less often by more than {100 * margin:g} points is {kept} "
        f"(one-sided 95% bound {points(comparison['contrast_lower_bound'])})"
    )
