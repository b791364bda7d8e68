"""metrics.json and environment.json of a run in words: the summary, what limits it, and the conditions of a win."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from experiments.benchmarks.published import LEADERBOARD, OTHERS
from experiments.report.sentences import refusal, yes_no
from experiments.report.sentences.wording import exploratory
from experiments.runs.provenance import subject
from interp.checkpoints.config import ORGANISM

LETTERS = 80  # of a text in a sentence
FOREIGN = (
    "The model is the bundled organism, which knows IconWorld's words and pictures alone: on {benchmark} its answers "
    "mean nothing, and this run shows only that every step works."
)


_LEADERBOARD = (
    "The published row of {name} in {table}, by its own judge and with empty answers counted as refusals: of all 300 "
    "benign requests, {cells} refused; on average {average:g}%."
)
_TABLE = (
    "The published row of {name} in {table}, by its own scorer on all 1,523 cases: {over_safety:.1f}% of safe ones are "
    "called safe and {unsafe:.1f}% of unsafe ones unsafe (the plain mean of typical and attack), "
    "overall {overall:.1f}%."
)


def with_sentences(metrics: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics with ``summary``, ``caveats``, and ``wins_reasons`` in every comparison.

    Raises:
        UserError: the arm under study is none of the metrics'.
    """
    benchmark = environment.get("benchmark") or {}
    studied = str(metrics["study"])
    about = subject(environment.get("model"), str(environment.get("arm_under_study") or studied))
    judged_again = f", judged by {environment['judge']}" if environment.get("judged_run") else ""
    where = f"{about} on {benchmark.get('name') or 'the benchmark'}{judged_again}"
    found = worded(metrics, where=where, caveat=" ".join(_of_the_run(metrics, environment)))
    beside = yes_no.beside(metrics, studied) if environment.get("joined") else []
    summary = [
        *([f"The method under study failed: {metrics['failed']}."] if metrics.get("failed") else []),
        *found["summary"][:1],
        *beside,
        *found["summary"][1:],
        *map(published_sentence, (metrics.get("published_rows") or {}).values()),
        *(environment.get("people") or ()),
    ]
    return found | {"summary": summary}


def worded(metrics: Mapping[str, Any], *, where: str = "", caveat: str = "") -> dict[str, Any]:
    """The metrics of a benchmark of either kind with ``summary``, ``caveats`` and every comparison's ``wins_reasons``.

    Args:
        metrics: of a benchmark's ``results.evaluate``.
        where: model and benchmark in words ("llava_organism on iconworld"), for the summary's first sentence.
        caveat: a sentence that the caveats begin with, as for a model whose answers mean nothing here.
    """
    rules, arm = refusal if metrics.get("kind") == "refusal" else yes_no, str(metrics["study"])
    compared = {
        name: comparison | {"wins_reasons": rules.reasons(metrics, name)}
        for name, comparison in metrics["comparisons"].items()
    }
    return dict(metrics) | {
        "comparisons": compared,
        "summary": rules.sentences(metrics, arm, where=where),
        "caveats": [*exploratory(metrics), *rules.caveats(metrics, arm, text=caveat)],
    }


def published_sentence(row: Mapping[str, Any]) -> str:
    """The published row of a model, to stand beside a run's own numbers; compares nothing.

    ``row`` is of ``experiments.benchmarks.published.row_of``.
    """
    if row["table"] == LEADERBOARD:
        cells = ", ".join(f"{name} {rate:g}%" for name, rate in row["refused"].items())
        return _LEADERBOARD.format(**row, cells=cells)
    if row["table"] == OTHERS:
        rates = ", ".join(f"{name} {rate:g}%" for name, rate in row["rates"].items())
        return f"What {row['benchmark']}'s authors report of {row['name']}, by their own judge: {rates}."
    return _TABLE.format(**row)


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


def same_text(metrics: Mapping[str, Any]) -> list[str]:
    """A sentence for each arm whose answers are all one and the same text (``experiments.evaluation.scoring``)."""
    lines = []
    for arm, one in (metrics.get("same_text") or {}).items():
        text = " ".join(one["text"].split())
        shown = f"“{text if len(text) <= LETTERS else text[: LETTERS - 1] + '…'}”"
        if one["word"]:
            lines.append(
                f"{arm} answers {shown} {one['n']:,} times out of {one['n']:,}: its verdicts tell no case from another."
            )
        elif not text:
            lines.append(
                f"All {one['n']:,} answers of {arm} are empty: see what the model was asked before its numbers."
            )
        else:
            lines.append(
                f"All {one['n']:,} answers of {arm} are one and the same text ({shown}): it may stand in for answers "
                "that failed, or be a fixed reply; read it before its numbers."
            )
    return lines


def thoughts(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on arms that think first: thoughts that were cut off, and where their margins stand."""
    by_arm, refusals = metrics.get("thoughts") or {}, metrics.get("kind") == "refusal"
    lines = []
    for arm, one in by_arm.items():
        if not one["cut_off"]:
            continue
        after = "" if one["longest"] is None else f" after {one['longest']:,} tokens"
        lines.append(
            f"In {one['cut_off']:,} of {one['n']:,} answers of {arm} the thought was cut off{after}: they hold no "
            f"verdict and {'leave the rates, whose bounds have them' if refusals else 'count as wrong'}. {_budget(one)}"
        )
    ranked = [
        arm
        for arm, one in by_arm.items()
        if (metrics["arms"].get(arm) or {}).get("auroc") is not None and not one.get("at_verdict")
    ]
    if ranked:
        lines.append(
            f"{', '.join(ranked)} think{'s' if len(ranked) == 1 else ''} first: margins, and so AUROC, shifts and the "
            "operating point, are those of the thought's first token, since the model does not give scores at the "
            "verdict."
        )
    return lines


def _budget(one: Mapping[str, Any]) -> str:
    """Which ``max_new_tokens`` would have let 95% of an arm's thoughts end."""
    if one["budget"] is not None:
        return (
            f"95% of its thoughts end within {one['budget']:,} tokens (Kaplan–Meier); the answer takes some more: "
            "set max_new_tokens so."
        )
    return "Which max_new_tokens would let 95% of its thoughts end cannot be told from these; set it higher."


def _of_the_run(metrics: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """What limits every number of the run, in sentences."""
    model, benchmark = environment.get("model") or {}, environment.get("benchmark") or {}
    missing = benchmark.get("missing")
    folded = ", ".join(metrics.get("learned_in_folds") or ())
    lines = [
        foreign(str(model.get("path") or ""), str(benchmark.get("name"))),
        *thoughts(metrics),
        *same_text(metrics),
        shortfall(int(benchmark.get("complete", 0)), missing if isinstance(missing, Mapping) else {}),
        folded and f"Learned in folds of these cases, each case by what the others teach: {folded}.",
        str(model.get("rounded") or ""),
        *map(str, environment.get("training_rows") or ()),
    ]
    return [*filter(None, lines)]
