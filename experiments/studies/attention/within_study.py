"""``attention=true``: the failure analysis of attention as part of a study.

Importing this module loads neither torch nor transformers.
"""

from functools import partial
from typing import TYPE_CHECKING

from experiments.evaluation.batching import halved
from experiments.types import AnsweredElsewhere
from interp.errors import UserError
from mitigation.method import abilities

if TYPE_CHECKING:
    from experiments.evaluation.study import Study

BASELINE = "baseline"


def attention_of_study(study: "Study") -> list[str]:
    """Writes where the attention of the baseline's failures went, and of single cases; what was found, in words."""
    if study.run.endpoint is not None or study.vlm is None:
        return ["attention was not analysed: it is that of a model whose weights are here"]
    try:
        with study.console.status("attention of failures and matched successes"):
            found = halved(study.run.batch_size, partial(_failures, study))
            halved(study.run.batch_size, partial(_cases, study))
    except UserError as error:  # the study is worth keeping also where its attention cannot be looked at
        return [f"attention was not analysed: {error}"]
    return found


def _failures(study: "Study", batch_size: int) -> list[str]:
    from experiments.studies.attention.analysis import analyse_failures

    run = study.run
    if run.benchmark.kind != "yes_no":
        return ["failures and successes were not compared by attention: that is done for yes/no verdicts"]
    result = analyse_failures(
        study.vlm,
        study.samples,
        study.records(),
        study.store.path,
        seed=run.seed,
        draws=run.draws,
        batch_size=batch_size,
        max_new_tokens=run.max_new_tokens,
        captum=run.attribution == "captum",
    )
    return list(result["sentences"])


def _cases(study: "Study", batch_size: int) -> None:
    """Attention of single cases under the baseline and the arm under study, for the report."""
    from experiments.evaluation.attention_log import cases_to_show, record_cases

    run = study.run
    alike = {arm: run.arms[arm] for arm in (BASELINE, run.arm) if arm not in study.not_applicable}
    arms = {
        arm: study.ready(arm)
        for arm, method in alike.items()
        if not isinstance(method, AnsweredElsewhere) and not abilities(method).fitted_to
    }
    samples = cases_to_show(
        study.samples, study.records(), studied=run.arm, reference=BASELINE, limit=run.attention_cases
    )
    if arms and samples:
        sizes = {"batch_size": batch_size, "max_new_tokens": run.max_new_tokens}
        record_cases(study.vlm, arms, samples, study.store.path, **sizes)
