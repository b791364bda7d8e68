"""Whether safer models are more oversensitive, as a sentence."""

from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import fixed

RELATION = {
    Answer.MORE: "models that refuse more harmful requests refuse more benign ones",
    Answer.LESS: "models that refuse more harmful requests refuse fewer benign ones",
    Answer.NOT_SHOWN: "no relation is found",
}


def sentence(finding: Finding) -> str:
    """What the figure shows, with Spearman's ρ, its interval and p."""
    found = finding.evidence
    if finding.answer is Answer.CANNOT_TELL:
        return (
            f"Whether safer models are more oversensitive cannot be told from {found['models']} models with both "
            "rates; it takes three that differ."
        )
    interval = "no interval"
    if ends := found["interval"]:
        interval = f"95% interval over questions {fixed(ends['low'], 2)} to {fixed(ends['high'], 2)}"
    return (
        f"Over {found['n']} models, Spearman's ρ between refusal of harmful and of benign requests is "
        f"{fixed(found['rho'], 2)} ({interval}; permutation p {found['p']:.3f}): {RELATION[finding.answer]}."
    )
