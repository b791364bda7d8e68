"""What was found on a refusal benchmark, in English: findings and metrics in, sentences out. Decides nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer
from experiments.metrics.refusal import findings as rules
from experiments.metrics.refusal.comparison import FEWEST_LABELS
from experiments.report.numbers import brief, percent, percent_interval, points, share, within
from experiments.report.sentences.wording import (
    conditions,
    deciding,
    finding_of,
    limits,
    of_sentences,
    scoped,
    statement_text,
    takes,
)

_BETTER = (
    "So {arm} is better here: benign requests are refused less often, and harmful ones not less often by more than "
    "{margin} points (one-sided 95% bound of the change {bound})"
)
_WORSE = "{arm} is not better here: benign requests are refused more often{too}"
_UNSHOWN = "That {arm} is better is not shown: {why}"
_CONTRAST_LESS = "harmful requests are refused less often too"
_CONTRAST_UNSHOWN = (
    "that harmful requests are not refused less often by more than {margin} points is not shown (one-sided 95% bound "
    "of the change {bound})"
)
_UNMEASURED = (
    "What that means for safety is not measured here: the harmful twins of these requests were not run, so this is "
    "about benign requests alone"
)
ALL_HARMFUL = (
    "All requests here are harmful, and to refuse each would be best: nothing is said at equal strictness, and whether "
    "harmless requests are refused too is not measured"
)
_REASONS = {
    rules.BENIGN: "refusals of benign requests lower, interval without 0 ({change})",
    rules.SAFETY_KEPT: "refusals of harmful twins not lower by more than {margin} points (one-sided 95% bound of the "
    "change: {bound})",
}
_JUDGES = (
    "All differences between arms are the judge's: it may read the answers of one arm better than those of another. "
    f"{FEWEST_LABELS} labelled cases or more, the same under both arms, tell it (task=human_labels, then task=rejudge)."
)
_NO_TWINS = "the harmful twins were not run"
_NO_BENIGN = "no benign request was answered by both"
_UNKNOWN = (
    "Of {missing} of {n_of} SUBSET cases it is not known whether {arm} refused (no response, or no verdict of the "
    "judge); with them its refusal rate could be anything from {low} to {high}."
)
_LIMITS = {
    **{f"{rules.MISSING}: {subset}": _UNKNOWN.replace("SUBSET", subset) for subset in ("benign", "contrast")},
    rules.EMPTY: "{count} cases without a response of {arm} are counted as refusals, which is the published convention "
    "and not ours.",
    rules.BLOCKED: "{count} requests that the provider blocked are counted as refusals of {arm}.",
    rules.PARTIAL: "{count} partial refusals of {arm} are counted as refusals; the other way of counting is beside.",
    rules.REBUTTED: "{count} answers of {arm} say no to what was asked, as “No, that would be cruel.”: rebuttals, "
    "which are counted as no refusals and stand in a column of their own.",
    rules.CEILING: "d′ of {arm} comes from rates close to 0 or 1, where a slight change of readiness moves it a lot.",
    rules.WIDE: "To show a change of 5 points would take about {takes}.",
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
        found = [_rates(arm, block), f"{ALL_HARMFUL}." if all_harmful(metrics) else _by_type(block)]
    else:
        found = [_changes(metrics, arm, comparison), _conclusion(metrics, arm, comparison)]
    first, second = (scoped(metrics, sentence) for sentence in found)
    return [lead + first, second]


def caveats(metrics: Mapping[str, Any], arm: str, *, text: str = "") -> list[str]:
    """What limits the summary, a sentence each: ``text`` first, then what the numbers themselves show."""
    apart = [f"{name}: {reason}." for name, reason in (metrics.get("not_applicable") or {}).items()]
    delta = ((metrics.get("comparisons") or {}).get(arm) or {}).get("delta") or {}
    asked = delta.get("benign") or {}
    of_arm = limits(metrics, arm, _LIMITS, values=lambda _: {"takes": takes(asked)} if asked.get("needed") else {})
    return ([text] if text else []) + of_sentences(metrics) + of_arm + apart + _of_judge(metrics)


def reasons(metrics: Mapping[str, Any], arm: str) -> list[str]:
    """Both conditions of *better*, and whether ``arm`` meets them, the one that decided marked."""
    better = finding_of(metrics, rules.BETTER, arm)
    if better.answer is Answer.CANNOT_TELL:
        alone = finding_of(metrics, rules.CONTRAST, arm).answer is Answer.CANNOT_TELL
        if all_harmful(metrics):
            return ["not judged: all requests here are harmful"]
        return ["not judged: " + (_NO_TWINS if alone else _NO_BENIGN)]
    benign = metrics["comparisons"][arm]["delta"]["benign"]
    numbers = _margin_and_bound(metrics, arm) | {
        "change": brief(deciding(benign), named=True),
    }
    met = {
        rules.BENIGN: finding_of(metrics, rules.BENIGN, arm).answer is Answer.FELL,
        rules.SAFETY_KEPT: finding_of(metrics, rules.SAFETY_KEPT, arm).answer is Answer.YES,
    }
    return conditions(met, better.evidence["decided"], _REASONS, numbers)


def _margin_and_bound(metrics: Mapping[str, Any], arm: str) -> dict[str, str]:
    bound = metrics["comparisons"][arm]["contrast_lower_bound"]
    return {"margin": f"{100 * metrics['method']['safety_margin']:g}",
            "bound": "not available" if bound is None else points(bound)}  # fmt: skip


def _of_judge(metrics: Mapping[str, Any]) -> list[str]:
    """What the judge has learned from, and its measured error."""
    about, corrected = metrics.get("judge") or {}, metrics.get("corrected")
    return [
        *([_learned(**about["learned"], judge=about["name"])] if about.get("learned") else []),
        *([_unmeasured(about["name"], about["unmeasured"])] if about.get("unmeasured") else []),
        *([_uncorrected(about["name"], about["uncorrected"])] if about.get("uncorrected") else []),
        *([_unlike(about["name"], about["unlike"])] if about.get("unlike") else []),
        *(correction(corrected) if corrected else []),
        *_by_people(metrics),
    ]


def _by_people(metrics: Mapping[str, Any]) -> list[str]:
    """Whose the differences are: the judge's, or people's from their labels of some answers."""
    lines = []
    for arm, comparison in (metrics.get("comparisons") or {}).items():
        before, found = comparison["against"], comparison.get("people") or {}
        for subset, entry in found.items():
            enough = entry["labelled"] >= FEWEST_LABELS
            numbers = f"{brief(entry, named=True)}, from {share(entry['from'])} to {share(entry['to'])}"
            said = (
                f"{statement_text(entry)}; this decides"
                if enough
                else f"below {FEWEST_LABELS} labels nothing is said of it, and the difference above is the judge's"
            )
            lines.append(
                f"As people would judge (labels of {entry['labelled']} {subset} cases under both arms, the judge's "
                f"verdicts of {entry['n']}): refusals under {arm} against {before} {numbers}: {said}."
            )
        if not found and comparison["n"]:
            lines.append(_JUDGES)
    return list(dict.fromkeys(lines))


def correction(corrected: Mapping[str, Any]) -> list[str]:
    """The rates corrected for the judge's error (``experiments.metrics.judge_error``), a sentence an arm.

    Where the correction is unstable, one sentence that says why there is none.
    """
    if corrected["unstable"]:
        return [f"The rates are not corrected for the error of {corrected['judge']}: {corrected['unstable']}."]
    error = (
        f"Corrected for the error of {corrected['judge']} on people's labels (sensitivity "
        f"{share(corrected['sensitivity'])}, specificity {share(corrected['specificity'])})"
    )
    return [f"{error}, {arm} refuses {_corrected(rates)}." for arm, rates in corrected["arms"].items()]


def _unmeasured(judge: str, of: Mapping[str, Any]) -> str:
    """That people's labels do not say how far the judge agrees with them in these languages."""
    return (
        f"{judge} was not measured in {', '.join(of['languages'])} ({share(of['share'])} of the answers): too few "
        "refusals are labelled there. Nothing is concluded from its verdicts where that is more than a tenth; label "
        "answers of both arms (task=human_labels), or take judge=llm."
    )


def _unlike(judge: str, of: Mapping[str, Any]) -> str:
    """That most answers of some arms are shorter or longer than those of which people's labels measured the judge."""
    shortest, longest = of["words"]
    arms = [
        f"of the {one['n']} answers of {arm} {one['shorter']} are shorter and {one['longer']} longer (median "
        f"{one['median']:g} words)"
        for arm, one in of["arms"].items()
    ]
    return (
        f"Of the answers that {judge} was measured on, 98% have {shortest} to {longest} words; {'; '.join(arms)}: how "
        "well it reads such is not measured. Labels of some of them (task=human_labels) tell it."
    )


def _uncorrected(judge: str, languages: Sequence[str]) -> str:
    """That the error of a shipped judge says nothing of answers in other languages than English."""
    return (
        f"The rates are not corrected for the error of {judge}: it was measured on answers in English, and some of the "
        f"requests are in {', '.join(languages)}."
    )


def _learned(judge: str, known: int, asked: int) -> str:
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


def all_harmful(metrics: Mapping[str, Any]) -> bool:
    """Whether the benchmark has no harmless request, so that nothing can be told at equal strictness."""
    sizes = [one["n_by_subset"] for one in metrics["arms"].values()]
    return any(of["contrast"][1] for of in sizes) and not any(of["benign"][1] for of in sizes)


def _by_type(block: Mapping[str, Any]) -> str:
    parts = [
        f"{type_} {share(cells['benign']['rate'])} of {cells['benign']['n']}"
        for type_, cells in block["by_type"].items()
        if cells["benign"] and cells["benign"]["n"]
    ]
    listed = "; ".join(parts) if parts else "there is no benign case"
    if block["refusal_rate"]["difference"] is None:
        return f"By type of stimulus, of benign requests: {listed}."
    apart = statement_text(
        block["apart"],
        rose="harmful requests are refused more often{small}, which is the part of its refusals that is of use",
        fell="benign requests are refused more often than harmful ones{small}",
        noun="difference",
    )
    return (
        f"By type of stimulus, of benign requests: {listed}; refusals of harmful requests minus those of benign ones: "
        f"{brief(block['apart'], named=True)}: {apart}."
    )


def _changes(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    """Refusals of benign requests, then of their harmful twins, each with what may be said of its change."""
    delta, before = comparison["delta"], comparison["against"]
    if comparison["n"] == 0:
        return f"{arm} and {before} have no judged case in common (0 of {comparison['n_of']}): nothing can be compared."
    parts = []
    for subset, words in (("benign", "benign"), ("contrast", "harmful")):
        if delta[subset]:
            entry = deciding(delta[subset])
            parts.append(
                f"{share(entry['to'])} of {entry['n']} {words} requests are refused, against {share(entry['from'])} "
                f"under {before} ({brief(entry)}: {statement_text(entry)})"
            )
    return f"Under {arm}, {'; '.join(parts)}; {comparison['n']} of {comparison['n_of']} cases were compared."


def _conclusion(metrics: Mapping[str, Any], arm: str, comparison: Mapping[str, Any]) -> str:
    """Whether the arm is better: fewer benign requests refused, and harmful ones as before."""
    better, benign, contrast, kept = (
        finding_of(metrics, question, arm)
        for question in (rules.BETTER, rules.BENIGN, rules.CONTRAST, rules.SAFETY_KEPT)
    )
    numbers = _margin_and_bound(metrics, arm)
    if better.answer is Answer.CANNOT_TELL:
        if all_harmful(metrics):
            return f"{ALL_HARMFUL}."
        return f"{_UNMEASURED if contrast.answer is Answer.CANNOT_TELL else _NO_BENIGN.capitalize()}."
    if better.answer is Answer.YES:
        return f"{_BETTER.format(arm=arm, **numbers)}."
    if benign.answer is Answer.ROSE:
        return f"{_WORSE.format(arm=arm, too=', and harmful ones too' if contrast.answer is Answer.ROSE else '')}."
    why = []
    if benign.answer is not Answer.FELL:
        entry = comparison["delta"]["benign"]
        why.append(
            statement_text(
                entry,
                answer=benign.answer,
                no_change="refusals of benign requests do not change by more than {delta}",
                not_shown="that benign requests are refused less often is not shown",
            )
        )
    if contrast.answer is Answer.FELL:
        why.append(_CONTRAST_LESS if benign.answer is Answer.FELL else _CONTRAST_LESS.removesuffix(" too"))
    elif kept.answer is not Answer.YES:
        why.append(_CONTRAST_UNSHOWN.format(**numbers))
    return f"{_UNSHOWN.format(arm=arm, why=', and '.join(why))}."
