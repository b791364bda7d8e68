"""metrics.json → two sentences for a reader who has not seen the project. Knows the rules of metrics.md and no files.

The first sentence says what happened to the accuracies, the second whether safe and unsafe are told apart better or
only "unsafe" is said more or less readily, and whether more was added than a threshold.
"""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import change, fixed, share, within
from interp.errors import UserError

_OPENINGS = {
    "discrimination_rose": "Discrimination rose: safe and unsafe cases are told apart better than before",
    "discrimination_fell": "Discrimination fell: safe and unsafe cases are told apart worse than before",
    "only_criterion_moved": "Only the criterion moved, that is how readily “unsafe” is said; no change was found "
    "in how well safe and unsafe are told apart",
    "nothing_moved": "Nothing moved beyond chance, neither an accuracy nor how well safe and unsafe are told apart",
}
_SUBSETS = {"typical": "typical", "attack": "attack", "over_safety": "over-safety"}


def sentences(metrics: Mapping[str, Any], arm: str, *, where: str = "") -> list[str]:
    """Exactly two sentences about ``arm``, with numbers, 95% intervals and denominators.

    Args:
        metrics: the contents of metrics.json (``arms`` and ``comparisons`` are read).
        arm: the arm under study; one without a comparison, such as the baseline, is described by itself.
        where: model and benchmark in words ("llava_organism on iconworld").

    Raises:
        UserError: ``arm`` is not one of the arms.
    """
    if arm not in metrics["arms"]:
        raise UserError(f"arm {arm!r} is not in these metrics; known: {', '.join(metrics['arms'])}; name one of them")
    lead = f"{where}: " if where else ""
    comparison = (metrics.get("comparisons") or {}).get(arm)
    if comparison is None:
        return [lead + _accuracies(arm, metrics["arms"][arm]), _discrimination(metrics["arms"][arm])]
    return [lead + _changes(arm, comparison), _conclusion(metrics, arm, comparison)]


def caveats(metrics: Mapping[str, Any], arm: str, *, text: str = "") -> list[str]:
    """What limits the summary, a sentence each: ``text`` first, then what the numbers themselves show."""
    block = metrics["arms"][arm]
    comparison = (metrics.get("comparisons") or {}).get(arm)
    found = [text] if text else []
    if block["n"] < block["n_of"]:
        low, high = block["bounds"]["overall"]
        found.append(
            f"{block['n_of'] - block['n']} of {block['n_of']} cases have no answer of {arm}; with them its overall "
            f"accuracy could be anything from {share(low)} to {share(high)}."
        )
    if absent := [_SUBSETS[name] for name in _SUBSETS if name not in block["overall_of"]]:
        present = " and ".join(_SUBSETS[name] for name in block["overall_of"]) or "nothing"
        found.append(
            f"No {' and no '.join(absent)} case has an answer of {arm}: overall is the mean of {present} alone."
        )
    if silent := block["outcomes"]["verdict"].get("no_verdict", 0):
        found.append(f"{silent} of {block['n']} answers of {arm} hold no readable Yes or No and count as wrong.")
    if block["near_ceiling"]:
        found.append(
            f"d′ of {arm} comes from rates close to 0 or 1, where a mere shift of the threshold moves it a lot."
        )
    if comparison and comparison["cases_needed_for_5_points"]:
        found.append(
            f"The interval of the overall change is wider than 5 points: to find a change of 5 points, about "
            f"{comparison['cases_needed_for_5_points']:,} cases are needed; {comparison['n']:,} were compared."
        )
    return found


def _changes(arm: str, comparison: Mapping[str, Any]) -> str:
    delta, before = comparison["delta"], comparison["against"]
    if comparison["n"] == 0:
        return f"{arm} and {before} have no case in common (0 of {comparison['n_of']}), so nothing can be compared."
    parts = []
    if safe := delta["over_safety"]:
        parts.append(f"{share(safe['to'])} of {safe['n']} safe cases are called safe, {_was(safe, before)}")
    if unsafe := delta["unsafe"]:
        parts.append(f"{share(unsafe['to'])} of {unsafe['n']} unsafe cases are called unsafe, {_was(unsafe, before)}")
    if overall := delta["overall"]:
        parts.append(
            f"overall accuracy (the plain mean of the subsets) goes from {share(overall['from'])} to "
            f"{share(overall['to'])} ({change(overall)}; {comparison['n']} of {comparison['n_of']} cases)"
        )
    return f"Under {arm}, {'; '.join(parts)}."


def _was(entry: Mapping[str, Any], before: str) -> str:
    return f"against {share(entry['from'])} under {before} ({change(entry)})"


def _conclusion(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    auroc, d_prime = comparison["delta"]["auroc"], comparison["delta"]["d_prime"]
    if comparison["conclusion"] == "cannot_tell":
        shown = "d′ is not available either"
        if d_prime:
            shown = f"d′ goes from {fixed(d_prime['from'], 2)} to {fixed(d_prime['to'], 2)}"
            shown += f" ({change(d_prime, of_rates=False)})"
        found = f"Whether discrimination changed cannot be told from {_missing(metrics, arm, comparison)}; {shown}"
        return f"{found}{_versus(arm, comparison)}."
    opening = _OPENINGS[comparison["conclusion"]]
    numbers = (
        f"AUROC of the margin, 0.5 being chance, from {fixed(auroc['from'], 3)} to {fixed(auroc['to'], 3)}: "
        f"{change(auroc, of_rates=False)}; {auroc['n']} cases"
    )
    return f"{opening} ({numbers}){_versus(arm, comparison)}."


def _missing(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    """What there is instead of an AUROC with an interval, and why."""
    if comparison["delta"]["auroc"] is not None:
        return "so few clusters of cases, which give no interval"
    notes = [metrics["arms"][name]["auroc_note"] for name in (arm, comparison["against"])]
    return f"verdicts alone (AUROC is {next(filter(None, notes), 'not available: no case has a margin in both')})"


def _versus(arm: str, comparison: Mapping[str, Any]) -> str:
    versus = comparison["versus_calibrated_shift"]
    if versus is None:
        if comparison["is_control"]:
            return (
                f"; {arm} is the control, which adds a constant to every margin and so moves nothing but the threshold"
            )
        return "; without a calibrated_shift arm it is open whether more than a threshold was added"
    numbers = f"overall {change(versus['delta']['overall'])}; balanced accuracy {change(versus['delta']['balanced'])}"
    if versus["beats"]:
        return f"; {arm} beats {versus['against']}, a mere move of the threshold ({numbers})"
    end = "it has added nothing but a threshold"
    if comparison["conclusion"] == "discrimination_rose":
        end = "in its verdicts it has added nothing that a threshold would not"
    return f"; {arm} does not beat {versus['against']}, a mere move of the threshold ({numbers}), so {end}"


def _accuracies(arm: str, block: Mapping[str, Any]) -> str:
    accuracy, intervals, n = block["accuracy"], block["intervals"], block["n_by_subset"]
    if block["n"] == 0:
        return f"{arm} has no answer to any of {block['n_of']} cases."
    parts = []
    if accuracy["over_safety"] is not None:
        parts.append(f"calls {share(accuracy['over_safety'])} of {n['over_safety'][0]} safe cases safe"
                     f"{within(intervals['over_safety'])}")  # fmt: skip
    if accuracy["unsafe"] is not None:
        parts.append(f"calls {share(accuracy['unsafe'])} of {n['typical'][0] + n['attack'][0]} unsafe cases unsafe"
                     f"{within(intervals['unsafe'])}")  # fmt: skip
    parts.append(f"reaches an overall accuracy (the plain mean of the subsets) of {share(accuracy['overall'])}"
                 f"{within(intervals['overall'])}")  # fmt: skip
    listed = ", ".join(parts[:-1]) + f" and {parts[-1]}"
    return f"{arm} {listed}, on {block['n']} of {block['n_of']} cases."


def _discrimination(block: Mapping[str, Any]) -> str:
    if block["d_prime"] is None:
        return (
            "How well safe and unsafe are told apart is not available, for that takes answers to cases of both kinds."
        )
    verdicts = f"d′ is {fixed(block['d_prime'], 2)} and the criterion {fixed(block['criterion'], 2)}"
    verdicts += " (negative means prone to say “unsafe”)"
    if block["auroc"] is None:
        return f"From its verdicts, {verdicts}; AUROC is {block['auroc_note']}."
    interval = block["intervals"]["auroc"]
    spread = "" if interval is None else f", 95% interval {fixed(interval[0], 3)} to {fixed(interval[1], 3)}"
    return (
        f"Its margin ranks a random unsafe case above a random safe one with a chance of {fixed(block['auroc'], 3)} "
        f"(AUROC{spread}; 0.5 would be guessing), and in its verdicts {verdicts}."
    )
