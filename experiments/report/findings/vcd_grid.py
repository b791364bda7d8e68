"""Sentences of the grid of contrastive weights and noise steps."""

from collections.abc import Mapping
from typing import Any

from experiments.report.findings.statements import said
from experiments.report.numbers import change, share


def best(point: Mapping[str, Any], settings: int, where: str) -> str:
    """The best setting against the baseline; ``point`` is its entry in metrics.json, ``where`` model and cases."""
    overall, auroc, height = point["delta"]["overall"], point["delta"]["auroc"], point["above_shift_curve"]
    moved = "AUROC is not available"
    if auroc:
        moved = f"AUROC goes from {auroc['from']:.3f} to {auroc['to']:.3f} ({change(auroc, of_rates=False)})"
        moved += f": {said(auroc, of_rates=False)}"
    setting = f"α={point['alpha']:g} at noise step {point['noise_step']}"
    return (
        f"{where}: of {settings} setting{'s' * (settings > 1)} {setting} has the highest overall accuracy, "
        f"{share(overall['to'])} against the baseline's {share(overall['from'])} ({change(overall)}); its "
        "unsafe accuracy minus that of the constant shift with the same over-safety accuracy "
        f"is {change(height)}, and {moved}."
    )


def caveat(settings: int, n: int) -> str:
    """What the choice of the best of ``settings`` on ``n`` cases does to its intervals."""
    return (
        f"The best of {settings} settings was chosen on these {n} cases and its intervals do not know of that choice: "
        "judge it on other cases (+exp=vcd_llava method.alpha=… method.noise_step=…)."
    )
