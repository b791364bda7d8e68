"""localise.json as sentences: what may be claimed of each part, with split, seed and number of parts tried."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, found
from experiments.report.numbers import fixed, percent
from experiments.report.sentences.wording import too_few
from experiments.report.table import estimate

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
    "measured on the other, in ten splits by chance; what is claimed held in at least eight of them. Numbers are of "
    "the first split; brackets hold 95% intervals over units, for all candidates of a question at once, and for "
    "those of the other questions. "
    "Faithfulness: the k best parts replaced together. Completeness: all but these, which run on what the others then "
    "give them: 0 if they alone keep the prompt’s own answer. "
    "Lost without it: the share of the two prompts’ difference that is gone with the part’s output set to its mean, or "
    "to 0, in both. Direct: what the part writes into the margin itself; one whose straight effect (all later parts "
    "held) differs from that by more than half of its slope acts through the final norm’s scale, and is not counted. "
    "The share of the truth, Σ moved / Σ gap, is refused where the interval of the mean gap meets 0."
)
CARRIES = "carries"


def sentences(result: Mapping[str, Any], *, seed: int) -> list[str]:
    """For each question its claim, how alike the questions rank the parts, and what was left out."""
    lines = [line for one in result["questions"] for line in (_claim(result, one, seed), *_needed(result, one))]
    if result["across"]:
        listed = "; ".join(
            f"{WHAT[row['one']]} and {WHAT[row['other']]} {fixed(row['correlation'], 2)}" for row in result["across"]
        )
        lines.append(f"Spearman correlation of all parts' slopes where they were ranked: {listed}.")
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
        f"intervals for {len(own)} parts at once; held in at least {result['rule']['holds']} of "
        f"{result['rule']['splits']} such splits"
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
    named = [f"{row['part']} {estimate(row)}{_held(row)}" for row in carrying]
    sentence = f"What carries {WHAT[question]}: {'; '.join(named)} of the gap" if named else (
        f"What carries {WHAT[question]}: no part is shown to")  # fmt: skip
    if against:
        opposed = [f"{row['part']} {estimate(row)}{_held(row)}" for row in against]
        sentence += f"; against it {'; '.join(opposed)}"
    return f"{sentence}; {gap} ({on})."


def _held(row: Mapping[str, Any]) -> str:
    return f" ({row['held']} of {row['of']})"


def _needed(result: Mapping[str, Any], question: str) -> list[str]:
    """What stands in for the parts that carry, and what moves the margin through the final norm alone."""
    lines = []
    of: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["backups"].get(question) or ():
        of.setdefault(row["part"], []).append(row)
    blocks = {row["part"]: row for row in result["confirm"][question]["parts"]}
    for part, rows in of.items():
        alone = percent(blocks[part]["without"]["zero"]["value"], 0)
        listed = ", ".join(f"without {row['backup']} too {percent(row['lost']['value'], 0)}%" for row in rows)
        lines.append(
            f"{part} is backed up: with its output set to 0 {alone}% of the difference is lost that {WHAT[question]} "
            f"makes, {listed}."
        )
    for row in blocks.values():
        if row["found"] and row.get("through_norm") and row["held"] >= result["rule"]["holds"]:
            scaled = fixed(row["straight"] - row["direct"], 2)
            lines.append(
                f"{row['part']} {estimate(row)}{_held(row)} is not counted: {scaled} comes through the final norm's "
                "scale, which makes all that others say louder or lower; by itself it writes "
                f"{fixed(row['direct'], 2)} into the margin."
            )
    return lines


def _range(values: list[float]) -> str:
    low, high = (fixed(value, 2) for value in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"
