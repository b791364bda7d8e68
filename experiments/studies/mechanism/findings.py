"""What mechanism.json shows: six questions, each answered by a stated rule, with the numbers the answer rests on.

An answer is given where a 95% interval lies wholly on one side; where it does not, the answer says so.
"""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.findings import Answer, Finding, side
from experiments.studies.mechanism.interventions import ALL_LAYERS, AS_IT_IS, PRIOR, arrives_at, effect_at
from experiments.studies.mechanism.probes import above_chance, probe_row, readable_from

Result = Mapping[str, Any]


def findings(result: Result) -> list[Finding]:
    """Is the picture read, carried to the verdict, where overruled, by what, by alarming words as such, reversible?"""
    return [_read(result), _carried(result), _overruled_at(result), _overruled_by(result), _alarming_words(result),
            _reversed(result)]  # fmt: skip


def _read(result: Result) -> Finding:
    """By the probe of what the picture shows, at the picture's own columns and the last layer."""
    probe, apart = probe_row(result["probes"], "concept", "image", result["points"][-1]), result["twins"]["apart"]
    if probe["value"] is not None:
        answer = Answer.YES if above_chance(probe) else Answer.NOT_SHOWN
    else:
        answer = Answer.CANNOT_TELL if apart["value"] is None else Answer.PARTLY
    return Finding("picture_read", answer, {"probe": probe, "apart": apart})


def _carried(result: Result) -> Finding:
    """By the probe of the truth at the verdict and the last layer (fixed beforehand), beside the model's own margin."""
    layers = result["points"]
    truth, concept = (probe_row(result["probes"], name, "verdict", layers[-1]) for name in ("truth", "concept"))
    margin = _reversal(result, AS_IT_IS)["auroc"]
    cut = [row for row in result["knockout"] if (row["edge"], row["layers"]) == ("image → verdict", ALL_LAYERS)]
    if truth["value"] is None or margin["value"] is None:
        answer = Answer.CANNOT_TELL
    elif above_chance(truth):
        answer = {1: Answer.MORE, 0: Answer.YES, -1: Answer.LESS}[side(truth["beyond"])]
    elif concept["value"] is not None and above_chance(concept):
        answer = Answer.PARTLY
    else:
        answer = Answer.NOT_SHOWN
    return Finding("picture_carried", answer, {
        "probe": truth,
        "margin": margin,
        "from": readable_from(result["probes"], "truth", "verdict", layers),
        "last": layers[-1],
        "edge_cut": cut[0]["change"] if cut else None,
    })  # fmt: skip


def _overruled_at(result: Result) -> Finding:
    """By the layers from which on patching the verdict's column brings half of another picture's or sentence's way."""
    layers, cases = result["points"], result["cases"]
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
        "within": _within_a_sentence(result),
    }
    if cases["subset"] is None:
        return Finding("overruled_at", Answer.NOWHERE, evidence)
    if sentence is None:
        return Finding("overruled_at", Answer.CANNOT_TELL, evidence)
    evidence["sentence"] = effect_at(rows["sentence"], "verdict", sentence)
    if picture is None:
        return Finding("overruled_at", Answer.NEVER_ARRIVES, evidence)
    evidence["picture_then"], evidence["picture"] = (
        effect_at(rows["picture"], "verdict", layer) for layer in (sentence, picture)
    )
    if sentence == picture:
        return Finding("overruled_at", Answer.AT_ONCE, evidence)
    return Finding("overruled_at", Answer.BEFORE if sentence < picture else Answer.AFTER, evidence)


def _within_a_sentence(result: Result) -> dict[str, Any] | None:
    """Where failures depart from successes of the same sentence, and how far they lie apart at the last layer."""
    within = result["lens"]["within"]
    if not within or within["point"] is None:
        return None
    gap = next(row for row in within["gaps"] if row["point"] == result["points"][-1])
    return {"from": within["point"], "gap": gap}


def _overruled_by(result: Result) -> Finding:
    """By how far margins lie apart between sentences, and between two pictures under one sentence."""
    twins, prior = result["twins"], result["prior"]
    apart, spread = twins["apart"], twins["spread"]
    if apart["value"] is None or spread["value"] is None:
        answer = Answer.CANNOT_TELL
    elif spread["low"] is not None and spread["low"] > apart["high"]:
        answer = Answer.SENTENCE
    elif apart["low"] is not None and apart["low"] > spread["high"]:
        answer = Answer.PICTURE
    else:
        answer = Answer.NEITHER
    evidence = {"spread": spread, "apart": apart, "ranked": twins["ranked"], "prior": prior["prior"], "r2": prior["r2"]}
    return Finding("overruled_by", answer, evidence)


def _alarming_words(result: Result) -> Finding:
    """By how much more often cases with alarming words are called unsafe, over sentence templates."""
    more = result["alarm"]
    if more is None or more["value"] is None:
        return Finding("alarming_words", Answer.CANNOT_TELL, {})
    return Finding("alarming_words", Answer.YES if side(more) > 0 else Answer.NOT_SHOWN, {"called_unsafe": more})


def _reversed(result: Result) -> Finding:
    """By the AUROC once the sentence's prior is taken away, beside a constant and ablated directions."""
    row, plain = _reversal(result, PRIOR), _reversal(result, AS_IT_IS)
    change = row["change"]
    if change["value"] is None:
        answer = Answer.CANNOT_TELL
    else:
        answer = {1: Answer.ROSE, 0: Answer.NOT_SHOWN, -1: Answer.FELL}[side(change)]
    flips = {name: row[name] for name in ("fixed", "wrong", "broken", "right")}
    return Finding("reversed", answer, {
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
