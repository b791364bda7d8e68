"""Whether safer models are more oversensitive, as a sentence."""

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.findings import Answer, Finding
from experiments.report.numbers import fixed, fixed_interval
from experiments.report.sentences.wording import statement_text


def sentence(finding: Finding) -> str:
    """What the figure shows, with Spearman's ρ and its interval over models."""
    found = finding.evidence
    if finding.answer is Answer.CANNOT_TELL:
        return (
            f"Whether safer models are more oversensitive cannot be told from {found['models']} models with both "
            "rates; it takes three that differ."
        )
    ends = found["over_models"]
    interval = "no interval"
    if ends["low"] is not None:
        interval = f"95% interval over models {fixed_interval((ends['low'], ends['high']), 2)}"
    words = statement_text(
        None,
        answer=finding.answer,
        rose="models that refuse more harmful requests refuse more benign ones",
        fell="models that refuse more harmful requests refuse fewer benign ones",
        not_shown="a relation is not shown",
        too_few=f"too few models to tell (it takes {FEWEST})",
    )
    return (
        f"Over {found['n']} models, Spearman's ρ between refusal of harmful and of benign requests is "
        f"{fixed(found['rho'], 2)} ({interval}): {words}."
    )
