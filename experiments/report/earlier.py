"""Runs that were concluded under earlier rules: their metrics are computed again from their answers.

metrics.json, attention.json and the sections of a run carry ``rules``, the version of what may be concluded
(``metrics.findings.RULES``). What lacks it may say more than its numbers carry, and is not repeated: metrics are
computed anew when a report is built (the file stays as it is), and other conclusions give way to a sentence that says
how to get them again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.metrics.findings import RULES
from experiments.metrics.refusal import results as refusal
from experiments.metrics.yes_no import results as yes_no
from experiments.report.findings import refusal as refusal_words
from experiments.report.findings import yes_no as yes_no_words
from experiments.runs.provenance import subject
from experiments.runs.saved import SavedRun

AGAIN = (
    "metrics.json of this run was written under earlier rules; what stands here was computed again from its answers."
)
_STAY = ("bundled organism", "cases can run here", "own output head")  # caveats on the model and on missing cases


def is_earlier(content: Mapping[str, Any]) -> bool:
    """Whether ``content``, of a run's JSON file, was concluded under earlier rules."""
    return content.get("rules") != RULES


def current(run: SavedRun) -> SavedRun:
    """``run`` with metrics by today's rules.

    Raises:
        UserError: its answers cannot be used.
    """
    return replace(run, metrics=_computed_again(run)) if is_earlier(run.metrics) else run


def _computed_again(run: SavedRun) -> dict[str, Any]:
    old, environment = run.metrics, run.environment
    method = old.get("method") or {}
    compared = old.get("comparisons") or {}
    study = next(str(name) for name in (environment.get("arm_under_study"), old.get("study"), *compared, *old["arms"])
                  if name in old["arms"])  # fmt: skip
    options: dict[str, Any] = {
        "seed": int(method.get("seed", 0)),
        "baseline": next((str(one["against"]) for one in compared.values()), "baseline"),
        "study": study,
    }
    options |= {"draws": int(method["draws"])} if "draws" in method else {}
    benchmark = (environment.get("benchmark") or {}).get("name") or "the benchmark"
    told = [str(caveat) for caveat in old.get("caveats") or () if any(words in str(caveat) for words in _STAY)]
    words = {
        "where": f"{subject(environment.get('model'), study)} on {benchmark}",
        "caveat": " ".join((AGAIN, *told)),
    }
    frame = pd.DataFrame(run.predictions)
    if old.get("kind") == "refusal":
        options |= {"safety_margin": method["safety_margin"]} if "safety_margin" in method else {}
        found = refusal.evaluate(frame, **options, empty_as_refusal=bool(method.get("empty_as_refusal")),
                                 not_applicable=old.get("not_applicable") or {})  # fmt: skip
        return refusal_words.worded(found, **words)
    options |= {"unsafe_margin": method["unsafe_margin"]} if "unsafe_margin" in method else {}
    options["contrasts"] = method.get("contrasts") or ()
    control = next((name for name in old["arms"] if str(name).endswith("calibrated_shift")), "calibrated_shift")
    return yes_no_words.worded(yes_no.evaluate(frame, **options, control=control), **words)
