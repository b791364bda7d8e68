"""Sentences of the family of organisms: whether the tools find the cause, and what each mitigation gains."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import brief, fixed, fixed_interval
from experiments.report.sentences.wording import deciding, statement_text

KINDS = {"template": "set by the template", "uniform": "uniform"}  # how the annotator leans
TRAITS = {
    "auroc": "AUROC of the margin",
    "within": "AUROC within a sentence",
    "image_effect": "effect of cutting image → verdict",
    "truth": "truth read by a probe",
}

FOLLOWS = {
    Answer.FELL: "all fall as that share grows",
    Answer.PARTLY: "of those whose interval lies below 0 a fall is shown, of the others it is not",
    Answer.NOT_SHOWN: "a fall is not shown of any",
    Answer.ROSE: "all rise as that share grows",
    Answer.TOO_FEW: f"too few organisms to tell (it takes {FEWEST})",
    Answer.CANNOT_TELL: "that cannot be told",
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
    parts = []
    for trait, one in finding.evidence["correlations"].items():
        if one is None:
            parts.append(f"{TRAITS[trait]} n/a")
            continue
        ends = f" [{fixed_interval((one['low'], one['high']), 2)}]" if one["low"] is not None else ""
        parts.append(f"{TRAITS[trait]} {fixed(one['value'], 2, sign=True)}{ends}")
    return (
        f"Rank correlation with the share of blind labels over {finding.evidence['n']} organisms whose leaning is "
        f"{KINDS[finding.about]}: {'; '.join(parts)}: {FOLLOWS[finding.answer]}."
    )


def _label_free_rule(finding: Finding) -> str:
    found = finding.evidence
    helps, others, difference = found["helps"], found["others"], found["difference"]
    sentence = "that cannot be tested, for it says the same of all"
    if difference is not None:
        sentence = statement_text(
            difference,
            of_rates=False,
            rose="it gains more where the rule says so",
            fell="it gains less where the rule says so",
            noun="difference",
        )
        if finding.answer is Answer.TOO_FEW:
            sentence = f"too few organisms to tell (it takes {FEWEST} on either side)"
        sentence = f"mean gain where it says so minus elsewhere {brief(difference, of_rates=False)}: {sentence}"
    return (
        f"The label-free rule says that {finding.about} helps {helps['organisms']} of {found['organisms']} organisms: "
        f"its AUROC is {_counted(helps)}; of the {others['organisms']} others, {_counted(others)}; {sentence}."
    )


def _counted(group: Mapping[str, Any], than: str = "the baseline's") -> str:
    return f"shown to be above {than} in {group['rose']}, below in {group['fell']}, neither in {group['neither']}"


def _gain(finding: Finding) -> str:
    found = finding.evidence
    if found["mean"] is None:
        return f"{finding.about}: AUROC cannot be told; wins in {found['wins']} of {found['organisms']} organisms."
    mean = deciding(found["mean"], studied=False)
    sentence = statement_text(mean, of_rates=False)
    if finding.answer is Answer.TOO_FEW:
        sentence = f"too few organisms to tell (it takes {FEWEST})"
    against_rival = (
        "" if found["over_rival"] is None else f"; {_counted(found['over_rival'], found['rival'] + chr(39) + 's')}"
    )
    return (
        f"{finding.about}: over {found['organisms']} organisms AUROC changes by {brief(mean, of_rates=False)} on "
        f"average: {sentence}; it is {_counted(found['baseline'])}{against_rival}; wins in {found['wins']}."
    )
