"""reasoning.json as sentences: when it was decided, what the thought carries, what it says, and what limits that."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import fixed, fixed_interval, percent, percent_interval, share
from experiments.report.sentences.wording import statement_text

DIFFERS = {
    "sentence": "two pictures of one sentence",
    "picture": "two sentences on one picture",
    "thing": "two sentences on one thing, in two pictures,",
}


def sentences(result: Mapping[str, Any]) -> list[str]:
    """One sentence on the decision, one or two on each kind of pair, one on what thoughts say."""
    return [_decided(result), *_carried(result), _said(result)]


def _decided(result: Mapping[str, Any]) -> str:
    one = found(result["findings"], "decided before it thought")
    assert one is not None
    at = one.evidence
    if at.get("value") is None:
        return "Whether it was decided before it thought cannot be told: no sentence has both verdicts."
    numbers = (
        f"with an empty thought the margin puts the case first that it will say Yes to in {share(at['value'])} of "
        f"{at['pairs']} pairs of one sentence{percent_interval_of(at)}, with the whole thought in {share(at['end'])}"
    )
    lead = {
        Answer.YES: "It was decided before it thought: ",
        Answer.PARTLY: "It was decided in part before it thought: ",
        Answer.NO: "It was decided by thinking: ",
        Answer.TOO_FEW: "Too few sentences have both verdicts to say when it was decided: ",
    }.get(one.answer, "When it was decided is not shown: ")
    return f"{lead}{numbers}."


def percent_interval_of(entry: Mapping[str, Any]) -> str:
    """The interval in brackets behind a blank; "" without one."""
    shown = percent_interval((entry.get("low"), entry.get("high")))
    return f" [{shown}]" if shown else ""


def _carried(result: Mapping[str, Any]) -> list[str]:
    said = []
    for differs, block in result["mediation"].items():
        whole, cut = (
            next(one for one in result["findings"] if one["about"] == differs and one["evidence"]["mediator"] == name)
            for name in ("whole thought", "without its conclusion")
        )
        text = f"Of what {DIFFERS[block['shares']]} make of the verdict ({block['pairs']} pairs), {_part(whole)}"
        said.append(f"{text}; of thoughts without their conclusion, {_part(cut)}.")
    return said


def _part(finding: Mapping[str, Any]) -> str:
    at = finding["evidence"]
    interval = fixed_interval((at["low"], at["high"]), 2)
    total = f"the whole is {fixed(at['value'], 2, sign=True)} logits{f' [{interval}]' if interval else ''}"
    if at.get("through_share_value") is None:
        return f"nothing can be shared out: {total} ({statement_text(at, answer=None, of_rates=False, noun='effect')})"
    through, direct = (
        f"{percent(at[f'{name}_share_value'], 0)}%"
        f"{percent_interval_of({end: at[f'{name}_share_{end}'] for end in ('low', 'high')})}"
        for name in ("through", "direct")
    )
    lead = {
        Answer.YES: "the thought carries it",
        Answer.NO: "the thought does not carry it",
        Answer.PARTLY: "the thought carries a part",
    }.get(Answer(finding["answer"]), "what carries it is not shown")
    return f"{lead}: {through} go through the thought and {direct} beside it ({total})"


def _said(result: Mapping[str, Any]) -> str:
    says, cases = result["says"], result["cases"]
    if says["value"] is None:
        return (
            f"By the rules that read them, none of {cases['with a thought and a verdict']} thoughts calls its request "
            "safe or unsafe."
        )
    return (
        f"{says['n']} of {cases['with a thought and a verdict']} thoughts call the request safe or unsafe, and "
        f"{share(says['value'])} of these answers do as the thought says{percent_interval_of(says)}."
    )


def notes(result: Mapping[str, Any]) -> list[str]:
    """What limits the numbers, a sentence each."""
    cases = result["cases"]
    found = [
        "Intervals are 95%, each by itself.",
        "A thought that is broken off, or put before another case, is off the model's own path; the totals with "
        "thoughts of other cases say how much that alone does.",
        "Thoughts are read by rules, in English.",
    ]
    if missing := cases["asked"] - cases["with a thought and a verdict"]:
        found.append(
            f"{missing} of {cases['asked']} answers have no thought that was closed and led to a verdict, and are "
            "left out."
        )
    if result["exact"] > 1e-3:
        found.append(
            f"Read again by one forward, margins differ by up to {result['exact']:.2g} logits from those of generating."
        )
    if result["looks"]["reason"]:
        found.append(f"Where it looks was not measured: {result['looks']['reason']}.")
    return found
