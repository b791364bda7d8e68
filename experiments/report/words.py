"""metrics.json and environment.json of a run in words: the summary, what limits it, and the conditions of a win."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from experiments.report.sentences import parts, published, refusal, yes_no
from experiments.runs.provenance import subject
from interp.checkpoints.config import ORGANISM

FOREIGN = (
    "The model is the bundled organism, which knows IconWorld's words and pictures alone: on {benchmark} its answers "
    "mean nothing, and this run shows only that every step works."
)


def with_sentences(metrics: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with ``summary``, ``caveats``, and ``wins_reasons`` in every comparison.

    Raises:
        UserError: the arm under study is none of the metrics'.
    """
    rules = refusal if metrics.get("kind") == "refusal" else yes_no
    benchmark = environment.get("benchmark") or {}
    studied = str(metrics["study"])
    about = subject(environment.get("model"), str(environment.get("arm_under_study") or studied))
    judged_again = f", judged by {environment['judge']}" if environment.get("judged_run") else ""
    where = f"{about} on {benchmark.get('name') or 'the benchmark'}{judged_again}"
    worded = rules.worded(metrics, where=where, caveat=" ".join(_of_the_run(metrics, environment)))
    summary = [
        *([f"The method under study failed: {metrics['failed']}."] if metrics.get("failed") else []),
        *worded["summary"],
        *([parts.sentence(metrics)] if metrics.get("parts") else []),
        *map(published.sentence, (metrics.get("published_rows") or {}).values()),
        *(environment.get("people") or ()),
    ]
    return worded | {"summary": summary}


def shortfall(samples: int, missing: Mapping[str, str]) -> str:
    """A sentence on the cases of a benchmark that cannot run here, and why; "" where all can."""
    if not missing:
        return ""
    reasons = Counter(reason.partition(":")[0] for reason in missing.values())
    listed = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.most_common())
    return f"{samples:,} of the benchmark's {samples + len(missing):,} cases can run here ({listed})."


def foreign(path: str, benchmark: str) -> str:
    """A warning about results of a bundled organism on a benchmark that it was not made for; otherwise ""."""
    made_for = benchmark == "iconworld" or (benchmark == "iconworld_requests" and path != f"{ORGANISM}llava")
    return FOREIGN.format(benchmark=benchmark) if path.startswith(ORGANISM) and not made_for else ""


def _of_the_run(metrics: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """What limits every number of the run, in sentences."""
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    missing = benchmark.get("missing")
    folded = ", ".join(metrics.get("learned_in_folds") or ())
    lines = [
        foreign(str(model.get("path") or ""), str(benchmark.get("name"))),
        shortfall(int(benchmark.get("complete", 0)), missing if isinstance(missing, Mapping) else {}),
        folded and f"Learned in folds of these cases, each case by what the others teach: {folded}.",
        str(model.get("rounded") or ""),
    ]
    return [*filter(None, lines)]
