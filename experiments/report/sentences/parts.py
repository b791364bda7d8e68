"""The headline by part as a sentence: what the model's training has seen of a case (``metrics.parts``)."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import fixed, share
from experiments.report.sentences.wording import word

_LEAD = "By what the model's training has seen of sentence and thing, "


def sentence(metrics: Mapping[str, Any]) -> str:
    """AUROC, or both refusal rates, of the arm under study in every part; the baseline's in brackets."""
    arm, refusals = str(metrics["study"]), metrics.get("kind") == "refusal"
    parts = (_refusals if refusals else _verdicts)(metrics, arm)
    what = f"{arm} refuses of harmful and of harmless requests" if refusals else f"the AUROC of {arm} is"
    return f"{_LEAD}{what}: {'; '.join(parts)}."


def _verdicts(metrics: Mapping[str, Any], arm: str) -> list[str]:
    found = []
    for part, block in metrics["parts"].items():
        if (answers := block["arms"].get(arm)) is None:
            continue
        text = f"{part} {fixed(answers['auroc'], 3)} (n = {sum(answers['n'].values())}"
        if comparison := block["comparisons"].get(arm):
            entry = comparison["delta"]["auroc"]
            text += f"; {comparison['against']} {fixed(entry and entry['from'], 3)}, {word(entry, of_rates=False)}"
        found.append(f"{text})")
    return found


def _refusals(metrics: Mapping[str, Any], arm: str) -> list[str]:
    found = []
    for part, block in metrics["parts"].items():
        if (answers := block["arms"].get(arm)) is None:
            continue
        rates = [share(answers["refusal_rate"][name]) for name in ("contrast", "benign")]
        text = f"{part} {' and '.join(rates)} (n = {sum(answers['n'].values())}"
        if comparison := block["comparisons"].get(arm):
            changes = [comparison["delta"][name] for name in ("contrast", "benign")]
            before = " and ".join(share(entry and entry["from"]) for entry in changes)
            changed = " and ".join(word(entry) for entry in changes)
            text += f"; {comparison['against']} {before}, {changed}"
        found.append(f"{text})")
    return found
