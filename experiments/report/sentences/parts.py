"""The headline by part as a sentence: what the model's training has seen of a case (``metrics.parts``)."""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.report.numbers import fixed, share
from experiments.report.sentences.wording import word

_LEAD = "By what the model's training has seen of sentence and thing, "


def sentence(metrics: Mapping[str, Any]) -> str:
    """AUROC, or both refusal rates, of the arm under study in every part; the baseline's in brackets."""
    arm, refusals = str(metrics["study"]), metrics.get("kind") == "refusal"
    names = ("contrast", "benign") if refusals else ("auroc",)

    def number(value: float | None) -> str:
        return share(value) if refusals else fixed(value, 3)

    found = []
    for part, block in metrics["parts"].items():
        if (answers := block["arms"].get(arm)) is None:
            continue
        values = answers["refusal_rate"] if refusals else answers
        text = f"{part} {_joined(number(values[name]) for name in names)} (n = {sum(answers['n'].values())}"
        if comparison := block["comparisons"].get(arm):
            changes = [comparison["delta"][name] for name in names]
            before = _joined(number(entry and entry["from"]) for entry in changes)
            changed = _joined(word(entry, of_rates=refusals) for entry in changes)
            text += f"; {comparison['against']} {before}, {changed}"
        found.append(f"{text})")
    what = f"{arm} refuses of harmful and of harmless requests" if refusals else f"the AUROC of {arm} is"
    return f"{_LEAD}{what}: {'; '.join(found)}."


def _joined(words: Iterable[str]) -> str:
    return " and ".join(words)
