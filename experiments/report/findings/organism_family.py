"""Sentences of the family of organisms: whether the tools find the cause, and what each mitigation gains."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Finding
from experiments.report.numbers import fixed

KINDS = {"template": "set by the template", "uniform": "uniform"}  # how the annotator leans
TRAITS = {
    "auroc": "AUROC of the margin",
    "within": "AUROC within a sentence",
    "image_effect": "effect of cutting image → verdict",
    "truth": "truth read by a probe",
}


def sentences(findings: Sequence[Finding]) -> list[str]:
    """A sentence for each finding, in their order."""
    words = {
        "traits follow the blind labels": _correlations,
        "label-free rule is right": _label_free_rule,
        "AUROC above the baseline's": _gain,
    }
    return [words[finding.question](finding) for finding in findings]


def _correlations(finding: Finding) -> str:
    parts = [
        f"{TRAITS[trait]} {fixed(one['rho'], 2, sign=True)} (p = {one['p']:.3f})" if one else f"{TRAITS[trait]} n/a"
        for trait, one in finding.evidence["correlations"].items()
    ]
    return (
        f"Rank correlation with the share of blind labels over {finding.evidence['n']} organisms whose leaning is "
        f"{KINDS[finding.about]}: {'; '.join(parts)}."
    )


def _label_free_rule(finding: Finding) -> str:
    helps, others = finding.evidence["helps"], finding.evidence["others"]
    return (
        f"The label-free rule says that {finding.about} helps {helps['organisms']} of "
        f"{finding.evidence['organisms']} organisms: its AUROC is above the baseline's in {_risen(helps)}; of the "
        f"{others['organisms']} others in {_risen(others)}."
    )


def _risen(group: Mapping[str, Any]) -> str:
    return f"{group['rose']} (interval excluding 0: {group['beyond_chance']})"


def _gain(finding: Finding) -> str:
    found = finding.evidence
    beside = "" if found["above_rival"] is None else f", over {found['rival']} in {found['above_rival']}"
    return (
        f"{finding.about}: AUROC above the baseline's, interval excluding 0, in {found['above_baseline']} of "
        f"{found['organisms']} organisms{beside}; wins in {found['wins']}."
    )
