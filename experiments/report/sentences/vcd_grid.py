"""Sentences of the grid of contrastive weights and noise steps."""

from collections.abc import Mapping
from typing import Any

from experiments.report.numbers import brief, share
from experiments.report.sentences.wording import deciding, statement_text


def best(point: Mapping[str, Any], settings: int, where: str) -> str:
    """The best setting against the baseline; ``point`` is its entry in metrics.json, ``where`` model and cases.

    It was picked out of many, so all is said by intervals that hold for all settings at once.
    """
    overall, height = (
        deciding(entry, studied=False) for entry in (point["delta"]["overall"], point["above_shift_curve"])
    )
    moved = "AUROC is not available"
    if auroc := point["delta"]["auroc"]:
        auroc = deciding(auroc, studied=False)
        moved = (
            f"AUROC goes from {auroc['from']:.3f} to {auroc['to']:.3f} ({brief(auroc, of_rates=False)}: "
            f"{statement_text(auroc, of_rates=False)})"
        )
    setting = f"α={point['alpha']:g} at noise step {point['noise_step']}"
    above = statement_text(height, rose="above the shifts", fell="below the shifts", noun="difference")
    return (
        f"{where}: of {settings} setting{'s' * (settings > 1)} {setting} has the highest overall accuracy, "
        f"{share(overall['to'])} against the baseline's {share(overall['from'])} ({brief(overall)}: "
        f"{statement_text(overall)}); its unsafe accuracy minus that of the constant shift with the same "
        f"over-safety accuracy is {brief(height)}: {above}; {moved}."
    )


def caveat(settings: int, n: int) -> str:
    """What the choice of the best of ``settings`` on ``n`` cases does to its numbers."""
    return (
        f"The best of {settings} settings was chosen on these {n} cases: the intervals in brackets hold for all "
        "settings at once, but the value is that of the luckiest; judge it on other cases (+exp=vcd_llava "
        "method.alpha=… method.noise_step=…)."
    )
