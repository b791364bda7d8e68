"""``attention=true``: the failure analysis of attention as part of a study.

Two analyses: failures and matched successes, and single cases for the report. Importing this module loads neither
torch nor transformers.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments.evaluation.analyses import Analysis
from experiments.evaluation.controls import only_shifts
from experiments.runs.responses import Responses

if TYPE_CHECKING:
    from experiments.evaluation.study import Study

BASELINE = "baseline"
FAILURES, CASES = "attention", "attention_cases"  # the names of the two analyses


def attention_of_study(study: "Study") -> list[Analysis]:
    """Where the attention of the baseline's failures went, and that of single cases."""
    if study.run.endpoint is not None or study.vlm is None:
        unseen = "attention was not analysed: it is that of a model whose weights are here"
        return [Analysis(FAILURES, "attention was not analysed", lambda _: [unseen])]
    return [of_failures(), of_cases()]


def of_failures(options: Mapping[str, Any] = MappingProxyType({}), *, in_full: bool = False) -> Analysis:
    """Compare failures and matched successes; the options are those of ``analyse_failures``.

    With ``in_full`` the words that draw most attention are printed as well, and where all is.
    """
    work = partial(_failures, options=options, in_full=in_full)
    return Analysis(FAILURES, "attention was not analysed", work, detail=not in_full)


def of_cases() -> Analysis:
    """Attention of single cases under the baseline and the arm under study, for the report."""
    return Analysis(CASES, "the attention of single cases was not recorded", _cases, detail=True)


def _failures(study: "Study", *, options: Mapping[str, Any], in_full: bool) -> list[str]:
    from experiments.report.text import lines
    from experiments.studies.attention.analysis import analyse_failures

    run = study.run
    if run.benchmark.kind != "yes_no":
        return ["failures and successes were not compared by attention: that is done for yes/no verdicts"]
    with study.console.status("attention of failures and matched successes"), study.answering.batching(FAILURES):
        result = analyse_failures(
            study.vlm,
            study.samples,
            study.records(),
            study.store.path,
            seed=run.seed,
            draws=run.draws,
            max_new_tokens=run.max_new_tokens,
            captum=run.attribution == "captum",
            **options,
        )
    more = (
        [*lines("words", words=result["words"]), f"attention: {study.store.path / 'attention.json'}"] if in_full else []
    )
    return [*result["sentences"], *more]


def _cases(study: "Study") -> list[str]:
    from experiments.evaluation.attention_log import cases_to_show, record_cases

    run = study.run
    alike = {arm: run.arms[arm] for arm in (BASELINE, run.arm) if arm not in study.arms.absent}
    arms = {
        arm: study.arms.ready(arm)
        for arm, method in alike.items()
        if not isinstance(method, Responses) and not only_shifts(method) and not study.arms.in_folds(arm)
    }
    samples = cases_to_show(
        study.samples, study.records(), studied=run.arm, reference=BASELINE, limit=run.attention_cases
    )
    with study.console.status("attention of single cases"), study.answering.batching(CASES):
        if arms and samples:
            record_cases(study.vlm, arms, samples, study.store.path, max_new_tokens=run.max_new_tokens)
    return []
