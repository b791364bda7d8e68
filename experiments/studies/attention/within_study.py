"""``attention=true``: the failure analysis of attention as part of a study.

Two analyses: failures and matched successes, and single cases for the report. Importing this module loads neither
torch nor transformers.
"""

from typing import TYPE_CHECKING, Any

from experiments.evaluation.fitting import only_shifts
from experiments.report.sections import Analysis
from experiments.runs.responses import Responses

if TYPE_CHECKING:
    from experiments.evaluation.study import Study

BASELINE = "baseline"
FAILURES, CASES = "attention", "attention_cases"  # the names of the two analyses
MISSING = "attention was not analysed"


def attention_of_study(study: "Study") -> list[Analysis]:
    """Return the analyses: where the attention of the baseline's failures went, and attention of single cases."""
    if study.run.endpoint is not None or study.vlm is None:
        unseen = f"{MISSING}: it needs a model whose weights are here"
        return [Analysis(FAILURES, MISSING, lambda _: [unseen])]
    cases = Analysis(CASES, "the attention of single cases was not recorded", _cases, detail=True)
    return [of_failures(detail=True), cases]


def of_failures(*, detail: bool = False, **options: Any) -> Analysis:
    """Return the comparison of failures and matched successes; the options go to ``analyse_failures``."""

    def work(study: "Study") -> list[str]:
        from experiments.evaluation.looking_inside import followed
        from experiments.report.tables import lines
        from experiments.studies.attention.analysis import analyse_failures

        run, folder = study.run, study.store.path
        settings = {"seed": run.seed, "draws": run.draws, "max_new_tokens": run.max_new_tokens, **options}
        with (
            study.console.status("attention of failures and matched successes"),
            study.answering.batching(FAILURES),
            followed(study, next_token=True) as seen,
        ):
            result = analyse_failures(
                study.vlm, seen.samples, seen.records, folder, verdict=seen.verdict, notes=seen.notes, **settings
            )
        return [*result["sentences"], *lines("words", words=result["words"]), f"attention: {folder / 'attention.json'}"]

    return Analysis(FAILURES, MISSING, work, detail=detail)


def _cases(study: "Study") -> list[str]:
    from experiments.evaluation.attention_log import record_cases
    from experiments.report.cases import cases_to_show

    run = study.run
    methods = {arm: run.arms[arm] for arm in (BASELINE, run.arm) if arm not in study.arms.absent}
    arms = {
        arm: study.arms.ready(arm)
        for arm, method in methods.items()
        if not isinstance(method, Responses) and not only_shifts(method) and not study.arms.in_folds(arm)
    }
    samples = cases_to_show(
        study.samples, study.records(), studied=run.arm, reference=BASELINE, limit=run.attention_cases
    )
    with study.console.status("attention of single cases"), study.answering.batching(CASES):
        if arms and samples:
            record_cases(study.vlm, arms, samples, study.store.path, max_new_tokens=run.max_new_tokens)
    return []
