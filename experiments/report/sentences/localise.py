"""localise.json as sentences: what may be claimed of each part, with split, seed and number of parts tried."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import fixed, fixed_interval
from experiments.report.sentences.wording import too_few

TITLE = "Which part does it?"
WHAT = {
    "picture": "the picture",
    "words": "the thing said in words",
    "sentence": "the sentence",
    "join": "what the sentence changes in the picture’s effect",
}
NOTE = (
    "A part’s number is the slope Σ moved·gap / Σ gap² over pairs of prompts, in both directions: 1 if replacing the "
    "part’s output by the other prompt’s moves the margin all the way. Parts were ranked on one half of the units and "
    "measured on the other; brackets hold 95% intervals over units, for all candidates of a question at once, and for "
    "those of the other questions. "
    "Faithfulness: the k best parts replaced together. Completeness: all but these, which run on what the others then "
    "give them: 0 if they alone keep the prompt’s own answer. "
    "The share of the truth, Σ moved / Σ gap, is refused where the interval of the mean gap meets 0."
)
CARRIES = "carries"


def sentences(result: Mapping[str, Any], *, seed: int) -> list[str]:
    """For each question its claim and its curve, then how the questions compare, and what was left out."""
    lines = []
    for question in result["questions"]:
        lines.append(_claim(result, question, seed))
        if question in result["faithfulness"]:
            lines.append(_curve(result, question))
    lines += _shared(result)
    if result["agreement"]:
        whole = next(row for row in result["agreement"] if row["layer"] is None)
        lines.append(
            f"Parts were ranked by gradients; on {whole['n']} of them, spread over the layers, their Spearman "
            f"correlation with exact patching is {fixed(whole['correlation'], 2)}."
        )
    return [*lines, *(f"Left out: {one}." for one in result["absent"])]


def _claim(result: Mapping[str, Any], question: str, seed: int) -> str:
    block, halves = result["confirm"][question], result["halves"]
    own = [row for row in block["parts"] if row["found"]]
    on = (
        f"found among {result['parts']} parts on {len(halves['discover']['units'])} units, measured on "
        f"{len(halves['confirm']['units'])} others ({halves['confirm']['pairs']} pairs, seed {seed}), "
        f"intervals for {len(own)} parts at once"
    )
    answers = {row["part"]: found(result["findings"], CARRIES, f"{question}: {row['part']}") for row in own}
    carrying = [row for row in own if (one := answers[row["part"]]) and one.answer is Answer.ROSE]
    against = [row for row in own if (one := answers[row["part"]]) and one.answer is Answer.FELL]
    gap = f"it moves the margin by {fixed(block['gap']['size'], 2)} logits (root mean square)"
    if not carrying and not against:
        few = [one for one in answers.values() if one is not None and one.answer is Answer.TOO_FEW]
        if few:
            return (
                f"What carries {WHAT[question]}: no part can be named, for there are {too_few(own[0], sides=1)} ({on})."
            )
        powers = sorted(row["power"] for row in own if row["power"] is not None)
        power = f"; one that carries a fifth would be shown with a chance of {_range(powers)}" if powers else ""
        return f"What carries {WHAT[question]}: no single part is shown; {gap} ({on}){power}."
    named = [f"{row['part']} {_entry(row)}" for row in carrying]
    sentence = f"What carries {WHAT[question]}: {'; '.join(named)} of the gap" if named else (
        f"What carries {WHAT[question]}: no part is shown to")  # fmt: skip
    if against:
        opposed = [f"{row['part']} {_entry(row)}" for row in against]
        sentence += f"; against it {'; '.join(opposed)}"
    return f"{sentence}; {gap} ({on})."


def _curve(result: Mapping[str, Any], question: str) -> str:
    """How many parts it takes; what random sets and all other parts do is in the table."""
    rows = result["faithfulness"][question]
    half, most = (
        "no k tried" if (k := result["smallest"][question][level]) is None else f"k = {k}" for level in ("0.5", "0.8")
    )
    return (
        f"Of {WHAT[question]}, half is restored by {half}, 80% by {most} (k = "
        f"{', '.join(str(row['k']) for row in rows)} of {result['parts']} parts were tried); the best {rows[-1]['k']} "
        f"together restore {_entry(rows[-1])}, as many random ones {_entry(result['random'][question][-1])}."
    )


def _shared(result: Mapping[str, Any]) -> list[str]:
    """Which parts are confirmed for more than one question, and how alike the questions rank the parts."""
    carrying = {
        one: {row["part"] for row in result["confirm"][one]["parts"] if row["statement"] == Answer.ROSE.value}
        for one in result["questions"]
    }
    lines = []
    for row in result["across"]:
        one, other = row["one"], row["other"]
        both = sorted(carrying[one] & carrying[other])
        named = (
            f"{', '.join(both)} {'carries' if len(both) == 1 else 'carry'} both"
            if both
            else "no part is shown to carry both"
        )
        lines.append(
            f"{WHAT[one][0].upper()}{WHAT[one][1:]} and {WHAT[other]}: {named}; Spearman correlation of all parts' "
            f"slopes where they were ranked {fixed(row['correlation'], 2)}."
        )
    return lines


def _entry(row: Mapping[str, Any]) -> str:
    ends = fixed_interval((row["low"], row["high"]))
    return fixed(row["value"], 2) + (f" [{ends}]" if ends else "")


def _range(values: list[float]) -> str:
    low, high = (fixed(value, 2) for value in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"
