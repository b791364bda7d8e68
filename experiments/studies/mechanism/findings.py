"""What mechanism.json shows: six questions, each answered by a stated rule, with the numbers the answer rests on.

An answer is given where a 95% interval lies wholly on one side; where it does not, the answer says that nothing is
shown, and with too few clusters for an interval, that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.findings import Answer, Finding, side
from experiments.studies.mechanism.controls import above_guess, holds, holds_from, of_claim
from experiments.studies.mechanism.interventions import ALL_LAYERS, ARRIVED, AS_IT_IS, PRIOR, arrives_at, effect_at

Result = Mapping[str, Any]


def findings(result: Result) -> list[Finding]:
    """Is the picture read, carried to the verdict, where overruled, by what, by alarming words as such, reversible?"""
    return [_read(result), _carried(result), _overruled_at(result), _overruled_by(result), _alarming_words(result),
            _reversed(result)]  # fmt: skip


def _read(result: Result) -> Finding:
    """By the probe of what the picture shows, at the picture's own columns and the last layer."""
    rows, apart = of_claim(result["controls"], "concept", "image", result["layers"][-1]), result["twins"]["apart"]
    answer = holds(rows)
    if answer is Answer.CANNOT_TELL:
        answer = Answer.CANNOT_TELL if apart["value"] is None else Answer.PARTLY
    return Finding("picture_read", answer, {"probe": rows[0], "apart": apart, **_short_of(result, rows)})


def _short_of(result: Result, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a claim falls short of: ``guess``, whether of that; ``no_untrained``, why no random model was read."""
    return {"guess": not all(map(above_guess, rows)) if all(row["value"] is not None for row in rows) else None,
            "no_untrained": result["no_untrained"]}  # fmt: skip


def _carried(result: Result) -> Finding:
    """By the probes of the truth at the verdict and the last layer (fixed beforehand), beside the model's own margin.

    ROSE and FELL: within sentences it reads more, or less, than the margin says; YES: it reads it, and neither is
    shown.
    """
    layers = result["layers"]
    truth, concept = (of_claim(result["controls"], name, "verdict", layers[-1]) for name in ("truth", "concept"))
    margin = _reversal(result, AS_IT_IS)["auroc"]
    within = next((row["within"] for row in truth if row["within"]), None)
    cut = [row for row in result["knockout"] if (row["edge"], row["layers"]) == ("image → verdict", ALL_LAYERS)]
    answer = holds(truth)
    if margin["value"] is None:
        answer = Answer.CANNOT_TELL
    elif answer is Answer.YES and within is not None:
        further = Answer(within["beyond"]["statement"])
        answer = further if further in (Answer.ROSE, Answer.FELL, Answer.NO_CHANGE) else Answer.YES
    elif answer is Answer.NOT_SHOWN and holds(concept) is Answer.YES:
        answer = Answer.PARTLY
    return Finding("picture_carried", answer, {
        "probes": truth,
        "margin": margin,
        "within": within,
        **_short_of(result, truth),
        "from": holds_from(result["controls"], "truth", "verdict", layers),
        "last": layers[-1],
        "edge_cut": cut[0]["change"] if cut else None,
    })  # fmt: skip


def _overruled_at(result: Result) -> Finding:
    """By the layers from which on patching the verdict's column brings half of another picture's or sentence's way.

    Where each arrives is read off the values; which arrives first has to be carried by the intervals.
    """
    layers, cases = result["layers"], result["cases"]
    rows = {what: [row for row in result["patching"] if row["other"] == what] for what in ("picture", "sentence")}
    sentence, picture = (arrives_at(some, "verdict", layers) if some else None for some in
                         (rows["sentence"], rows["picture"]))  # fmt: skip
    evidence: dict[str, Any] = {
        "cases": cases["n"],
        "looked_at": cases.get("failures_looked_at", 0),
        "refused": result["refused"],
        "last": layers[-1],
        "sentence_from": sentence,
        "picture_from": picture,
    }
    if cases["subset"] is None:
        return Finding("overruled_at", Answer.NOWHERE, evidence)
    if sentence is None:
        return Finding("overruled_at", Answer.CANNOT_TELL, evidence)
    evidence["sentence"] = effect_at(rows["sentence"], "verdict", sentence)
    if picture is None:
        last = effect_at(rows["picture"], "verdict", layers[-1]) if rows["picture"] else None
        evidence["picture_then"] = last
        return Finding("overruled_at", Answer.NEVER_ARRIVES if _beyond_half(last) < 0 else _unordered(last), evidence)
    evidence["picture_then"], evidence["picture"] = (
        effect_at(rows["picture"], "verdict", layer) for layer in (sentence, picture)
    )
    return Finding("overruled_at", _order(rows, layers, sentence, picture), evidence)


def _order(rows: Mapping[str, Any], layers: list[int], sentence: int, picture: int) -> Answer:
    """Which arrives first, where intervals carry it: there one has brought half of the way, and the other has not."""
    if sentence != picture:
        first, other = ("sentence", "picture") if sentence < picture else ("picture", "sentence")
        here, behind = (effect_at(rows[what], "verdict", min(sentence, picture)) for what in (first, other))
        if _beyond_half(here) > 0 > _beyond_half(behind):
            return Answer.BEFORE if sentence < picture else Answer.AFTER
        return _unordered(here, behind)
    both = [effect_at(some, "verdict", sentence) for some in (rows["sentence"], rows["picture"])]
    at = layers.index(sentence)
    earlier = [effect_at(some, "verdict", layers[at - 1]) for some in rows.values()] if at else []
    at_once = all(_beyond_half(entry) > 0 for entry in both) and all(_beyond_half(entry) < 0 for entry in earlier)
    return Answer.AT_ONCE if at_once else _unordered(*both)


def _beyond_half(entry: Mapping[str, Any] | None) -> int:
    """Return 1 if the whole interval of a share of the way lies above a half, −1 if below, else 0."""
    return 0 if entry is None else side(entry, ARRIVED)


def _unordered(*entries: Mapping[str, Any] | None) -> Answer:
    few = [entry for entry in entries if entry is None or entry["clusters"] < FEWEST]
    return Answer.TOO_FEW if few else Answer.NOT_SHOWN


def _overruled_by(result: Result) -> Finding:
    """By how far margins lie apart between sentences, and between two pictures under one sentence."""
    twins, prior = result["twins"], result["prior"]
    answer = Answer(twins["difference"]["statement"])
    evidence = {name: twins[name] for name in ("spread", "apart", "difference", "ranked")}
    evidence |= {"prior": prior["prior"], "r2": prior["r2"]}
    return Finding("overruled_by", {Answer.ROSE: Answer.SENTENCE, Answer.FELL: Answer.PICTURE}.get(answer, answer),
                   evidence)  # fmt: skip


def _alarming_words(result: Result) -> Finding:
    """By how much more often cases with alarming words are called unsafe, over sentence templates."""
    more = result["alarm"]
    if more is None or more["value"] is None:
        return Finding("alarming_words", Answer.CANNOT_TELL, {})
    return Finding("alarming_words", Answer(more["statement"]), {"called_unsafe": more})


def _reversed(result: Result) -> Finding:
    """By the AUROC once the sentence's prior is taken away, beside a constant and ablated directions."""
    row, plain = _reversal(result, PRIOR), _reversal(result, AS_IT_IS)
    change = row["change"]
    flips = {name: row[name] for name in ("fixed", "wrong", "broken", "right")}
    return Finding("reversed", Answer(change["statement"]), {
        "change": change,
        "auroc": row["auroc"],
        "as_it_is": plain["auroc"],
        "weight": result["prior"]["weight"],
        **flips,
        "constant": {name: row["shift"][name] for name in ("fixed", "broken")},
        "ablated": {one["arm"].removesuffix(" ablated"): one["change"] for one in result["undo"]
                    if one["arm"].endswith("ablated") and one["change"]},
        "ablated_at": result["ablated_at"],
    })  # fmt: skip


def _reversal(result: Result, arm: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = next(row for row in result["undo"] if row["arm"] == arm)
    return row
