"""What was found on a yes/no benchmark, in English: findings and metrics in, sentences out. Decides nothing.

Four sentences make the summary. The first answers the user's question: at equal safety, how many harmless requests get
an answer? The second says what comes of thresholds that are set on other cases, the third what the arm's own verdicts
do, the fourth how well its margins tell safe from unsafe.
"""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding, stated
from experiments.metrics.yes_no import findings as rules
from experiments.report.numbers import brief, fixed, share, within
from experiments.report.sentences.wording import (
    by_less,
    conditions,
    deciding,
    finding_of,
    limits,
    of_sentences,
    scoped,
    statement_text,
    word,
)
from interp.errors import UserError

_CANNOT_TELL = "At equal safety, whether {arm} answers more harmless requests than {before} cannot be told: {missing}"
_DISAGREE = (
    "in more than 1% of the answers of {arms} the verdict goes against the sign of the margin, so the margins are not "
    "what the verdicts were chosen by"
)
_REASONS = {
    rules.MATCHED: "with {caught} of unsafe requests caught, more harmless requests answered ({matched}){power}",
    rules.DEPLOYED: "with thresholds set on other cases than they judge, not shown to catch fewer unsafe requests "
    "({unsafe}) or to answer fewer harmless ones ({safe})",
}
_LIMITS = {
    rules.MISSING: "{missing} of {n_of} cases have no answer of {arm}; with them its overall accuracy could be "
    "anything from {low} to {high}.",
    rules.ABSENT: "No {absent} case has an answer of {arm}: overall is the mean of {present} alone.",
    rules.DISAGREE: "In {wrong} of {n} answers of {arm} the verdict goes against the sign of the margin; nothing is "
    "concluded from its margins.",
    rules.CEILING: "d′ of {arm} comes from rates close to 0 or 1, where a mere shift of the threshold moves it a lot.",
}
_SUBSETS = {"typical": "typical", "attack": "attack", "over_safety": "over-safety"}


def sentences(metrics: Mapping[str, Any], arm: str, *, where: str = "") -> list[str]:
    """Sentences about ``arm``, with numbers, 95% intervals and denominators; a terminal shows the first two.

    Args:
        metrics: the contents of metrics.json (``arms``, ``comparisons`` and ``findings`` are read).
        arm: the arm under study; one without a comparison, such as the baseline, is described by itself.
        where: model and benchmark in words.

    Raises:
        UserError: ``arm`` is not one of the arms.
    """
    if arm not in metrics["arms"]:
        raise UserError(f"arm {arm!r} is not in these metrics; known: {', '.join(metrics['arms'])}; name one of them")
    lead = f"{where}: " if where else ""
    comparison, by_margin = (metrics.get("comparisons") or {}).get(arm), metrics.get("protocol") == "score"
    if comparison is None:
        block = metrics["arms"][arm]
        found = [_accuracies(arm, block, by_margin=by_margin), _discrimination(block)]
    else:
        said = _verdicts(arm, comparison, by_margin=by_margin)
        deployed = _as_deployed(arm, comparison)
        found = [_headline(metrics, arm, comparison), *deployed, said, *_order(metrics, arm, comparison)]
    found[0] = _with_unreadable(metrics, arm, found[0])
    first, *rest = (scoped(metrics, sentence) for sentence in found)
    return [lead + first, *rest]


def beside(metrics: Mapping[str, Any], arm: str) -> list[str]:
    """A sentence for each arm that ``arm`` is compared with beside the baseline: at equal safety, by how much it
    answers more harmless requests, and what is said of it."""
    versus = ((metrics["comparisons"].get(arm) or {}).get("versus") or {}).items()
    entries = [(other, delta.get("matched_over_safety")) for other, delta in versus]
    return [
        f"{arm} beside {other}: at equal safety, {brief(deciding(entry))} of harmless requests answered, {word(entry)}."
        for other, entry in entries
        if entry
    ]


def caveats(metrics: Mapping[str, Any], arm: str, *, text: str = "") -> list[str]:
    """What limits the summary, a sentence each: unreadable answers, then ``text``, then what else the numbers show."""
    found = limits(metrics, arm, _LIMITS, values=_absent)
    return unreadable(metrics, arm) + ([text] if text else []) + of_sentences(metrics) + found


def _with_unreadable(metrics: Mapping[str, Any], arm: str, sentence: str) -> str:
    return " ".join([sentence, *unreadable(metrics, arm)])


def unreadable(metrics: Mapping[str, Any], arm: str) -> list[str]:
    """How many answers count as wrong without saying Yes or No: of ``arm``, and of what it is compared with."""
    comparison = (metrics.get("comparisons") or {}).get(arm)
    arms = [arm] if comparison is None else [arm, str(comparison["against"])]
    found = [(name, finding_of(metrics, rules.SILENT, name)) for name in arms]
    if all(one.answer is not Answer.YES for _, one in found):
        return []
    counts = [f"{one.evidence['silent']} of {one.evidence['n']} answers of {name}" for name, one in found]
    return [f"{' and '.join(counts)} hold no readable Yes or No and count as wrong."]


def reasons(metrics: Mapping[str, Any], arm: str) -> list[str]:
    """The conditions of a win, and whether ``arm`` meets them, the one that decided marked.

    Where there is no win it says how likely a study like this one is to show a gain of ten points.
    """
    delta, wins = metrics["comparisons"][arm]["delta"], finding_of(metrics, rules.WINS, arm)
    matched, deployed = delta["matched_over_safety"], [delta[f"deployed_{rate}"] for rate in ("unsafe", "over_safety")]
    power = wins.evidence["power"]
    unsaid = wins.answer is Answer.YES or power is None
    numbers = {
        "caught": share(metrics["method"]["operating_point"]),
        "matched": brief(matched and deciding(matched), named=True),
        "power": "" if unsaid else f"; a true gain of 10 points would be shown by {power:.0%} of studies like this one",
        **{name: brief(one and deciding(one)) for name, one in zip(("unsafe", "safe"), deployed, strict=True)},
    }
    met = {
        rules.MATCHED: stated(matched) is Answer.ROSE,
        rules.DEPLOYED: not {Answer.FELL, Answer.CANNOT_TELL} & {stated(one) for one in deployed},
    }
    return conditions(met, wins.evidence["decided"], _REASONS, numbers)


def _absent(limit: Finding) -> dict[str, str]:
    """Which subsets have no answer, and which have one."""
    if limit.question != rules.ABSENT:
        return {}
    absent = [name for subset, name in _SUBSETS.items() if limit.evidence[subset]]
    present = [name for subset, name in _SUBSETS.items() if not limit.evidence[subset]]
    return {"absent": " and no ".join(absent), "present": " and ".join(present) or "nothing"}


def _headline(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    """How many harmless requests are answered at the operating point, and what may be said of the change."""
    before, entry = comparison["against"], comparison["delta"]["matched_over_safety"]
    entry = entry and deciding(entry)
    if comparison["n"] == 0:
        return f"{arm} and {before} have no case in common (0 of {comparison['n_of']}), so nothing can be compared."
    answer = finding_of(metrics, rules.MATCHED, arm).answer
    if answer is Answer.CANNOT_TELL or entry is None:
        return _CANNOT_TELL.format(arm=arm, before=before, missing=_missing(metrics, arm, comparison)) + "."
    small = f" ({less.strip()})" if (less := by_less(entry)) else ""
    said = statement_text(
        entry,
        answer=answer,
        rose=f"at equal safety, more harmless requests get an answer{small}",
        fell=f"at equal safety, fewer harmless requests get an answer{small}",
        not_shown="a difference is not shown{needed}",
        too_few="{few}, so nothing is concluded",
    )
    return (
        f"With {share(entry['caught'])} of unsafe requests caught, {arm} answers "
        f"{share(entry['to'])} of {entry['n_safe']} harmless requests, the {before} {share(entry['from'])}, "
        f"{brief(entry, named=True)}: {said}."
    )


def _as_deployed(arm: str, comparison: Mapping[str, Any]) -> list[str]:
    """Both rates with thresholds set on other cases than they judge; empty where they cannot be read."""
    unsafe, safe = (comparison["delta"][f"deployed_{rate}"] for rate in ("unsafe", "over_safety"))
    if {stated(unsafe), stated(safe)} & {Answer.CANNOT_TELL, Answer.TOO_FEW}:
        return []
    unsafe, safe = deciding(unsafe), deciding(safe)
    return [
        f"As deployed, with thresholds set on other cases than they judge, {arm} catches {share(unsafe['to'])} of "
        f"unsafe requests and answers {share(safe['to'])} of harmless ones (the {comparison['against']} "
        f"{share(unsafe['from'])} and {share(safe['from'])}; {_change(unsafe)}, and {_change(safe)})."
    ]


def _verdicts(arm: str, comparison: Mapping[str, Any], *, by_margin: bool) -> str:
    """What became of both kinds of case in the verdicts."""
    delta, before = comparison["delta"], comparison["against"]
    parts = []
    for quantity, words in (("unsafe", "catches {to} of {n} unsafe requests"),
                            ("over_safety", "answers {to} of {n} harmless ones")):  # fmt: skip
        if entry := delta[quantity] and deciding(delta[quantity]):
            text = words.format(to=share(entry["to"]), n=entry["n"])
            parts.append(f"{text} (the {before} {share(entry['from'])}; {_change(entry)})")
    if not parts:
        return f"{arm} gives no verdict."
    own = "In its own verdicts (the signs of its margins: protocol=score)" if by_margin else "In its own verdicts"
    return f"{own}, at its own strictness, {arm} {' and '.join(parts)}."


def _order(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> list[str]:
    """How well safe and unsafe are told apart: by the margins where they can be read, else by the verdicts."""
    delta, before = comparison["delta"], comparison["against"]
    auroc, d_prime = delta["auroc"], delta["d_prime"]
    if finding_of(metrics, rules.DISCRIMINATION, arm).answer is Answer.CANNOT_TELL:
        if not d_prime:
            return []
        return [f"d′, which a mere shift of the threshold can move, goes from {fixed(d_prime['from'], 2)} to "
                f"{fixed(d_prime['to'], 2)} ({brief(d_prime, of_rates=False, named=True)})."]  # fmt: skip
    auroc = deciding(auroc)
    return [f"Over all levels of strictness: of an unsafe and a harmless request, {arm} ranks the harmless one safer "
            f"with probability {fixed(auroc['to'], 3)} (AUROC; 0.5 is a guess), the {before} with "
            f"{fixed(auroc['from'], 3)} ({_change(auroc, of_rates=False)})."]  # fmt: skip


def _change(entry: Mapping[str, Any], *, of_rates: bool = True) -> str:
    """A change with its interval, if it has one, and its statement in a word."""
    return f"{brief(entry, of_rates=of_rates)}, {word(entry, of_rates=of_rates)}"


def _missing(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    """Why nothing is read from the margins."""
    pair = (arm, comparison["against"])
    silent = [finding_of(metrics, rules.SILENT, name).evidence for name in pair]
    if any(one["silent"] and one["silent"] >= rules.MOST_UNREADABLE * one["n"] for one in silent):
        return f"{rules.MOST_UNREADABLE:.0%} or more of the answers hold no readable Yes or No"
    wrong = [name for name in pair if finding_of(metrics, rules.DISAGREE, name).answer is Answer.YES]
    if wrong:
        return _DISAGREE.format(arms=" and ".join(wrong))
    notes = [metrics["arms"][name]["auroc_note"] for name in pair]
    note = next(filter(None, notes), "not available: no case has a margin in both")
    return f"it takes margins, and there are verdicts alone (AUROC is {note})"


def _accuracies(arm: str, block: Mapping[str, Any], *, by_margin: bool) -> str:
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
    who = f"by the sign of its margin (protocol=score), {arm}" if by_margin else arm
    return f"{who} {listed}, on {block['n']} of {block['n_of']} cases."


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
