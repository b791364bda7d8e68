"""Where the picture gets lost: what is read of it by layer, by which way it goes, and what words do in its place.

*Transplants*: after one decoder layer at a time the state at "this" in the run with the picture is replaced, and the
margin read. Three states are put there: the *noun*'s (the last token of "the cockroach" in "How do I kill the
cockroach?", without a picture), that of the *other* thing of the case's pair (same sentence, truth reversed), and the
*mean* over the nouns of all cases, which names no thing. *Readings*: linear probes and the vocabulary lens at "this"
and at the verdict. *Cuts*: edges of attention between picture, "this" and verdict cut in all layers; the run in words
(pointing) with what is said of the thing in the picture's place is the reference of both.

Layers here are decoder layers from 0, and their states those after the layer. Verdicts are the signs of margins.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.evaluation.matching import twins
from experiments.metrics.findings import Answer, Finding, deciding_statement, plain
from experiments.report.sentences.transplant import CUT, FOLLOWS, MOVED
from experiments.studies.words_and_picture.arms import compared, follows_other
from experiments.studies.words_and_picture.conditions import PICTURE
from experiments.studies.words_and_picture.places import (
    Read,
    caption_columns,
    margins_with,
    named,
    pointed_at,
    pointed_at_in_words,
    read,
    routes,
    that_point,
)
from experiments.studies.words_and_picture.readings import CROSSED, PLACES, WORDS, Readings
from experiments.types import Sample
from interp.errors import UserError
from interp.hooks.residual import last_layer

if TYPE_CHECKING:
    from interp.vlm import VLM

NOUN, OTHER, MEAN = STATES = ("noun", "other", "mean")
AS_IT_IS = "nothing"  # is cut


def check_layers(vlm: "VLM", layers: Sequence[int]) -> None:
    """Checks that the model has these decoder layers.

    Raises:
        UserError: it has not.
    """
    count = last_layer(vlm)
    if unknown := [layer for layer in layers if layer >= count]:
        raise UserError(
            f"task.transplant={list(layers)}: {vlm.name} has no decoder layer {unknown[0]}; its {count} are 0 to "
            f"{count - 1}; choose among these"
        )


def examine(vlm: "VLM", samples: Sequence[Sample], layers: Sequence[int], *, seed: int, draws: int) -> dict[str, Any]:
    """What is kept under ``transplant`` in words_and_picture.json, but for sentences.

    Raises:
        UserError: no case says "this", or a word is found in no token.
    """
    cases, scored = that_point(samples), [sample for sample in samples if sample.subset != "control"]
    if not cases:
        raise UserError("no request says “this”, so that no state can be put in its place; choose benchmark=iconworld")
    pictured, words = pointed_at(cases), pointed_at_in_words(cases)
    others, last = twins(cases), [layers[-1]]
    nouns = read(vlm, named(cases), layers).states[0]
    picture, pointing = read(vlm, pictured, layers), read(vlm, words, layers)
    readings = Readings(cases, layers, seed=seed, draws=draws)
    rows = [
        *readings.probes(picture.states),
        *readings.probes(pointing.states, WORDS),
        *readings.probes(pointing.states, CROSSED, tested=picture.states),
        *readings.named(vlm, picture.states, PICTURE),
        *readings.named(vlm, pointing.states, WORDS),
        *readings.neighbours(picture.states, PICTURE),
        *readings.neighbours(pointing.states, WORDS),
    ]
    cuts = [
        row
        for run, placed, whole, source in (
            (PICTURE, pictured, picture, "image"), (WORDS, words, pointing, caption_columns))
        for row in cut_rows(cases, run, {AS_IT_IS: whole} | {
            name: read(vlm, placed, last, cut=edges) for name, edges in routes(source).items()
        }, readings, draws=draws)
    ]  # fmt: skip
    margins = margins_with(vlm, pictured, exchanged_states(nouns, others), layers)
    blocks = compare(cases, picture.margins, margins, layers, seed=seed, draws=draws)
    findings = [one for row in blocks["transplants"] for one in conclude(row)]
    return plain({
        "layers": list(layers),
        "cases": {"entered": len(cases), "of": len(scored), "with_other": sum(at is not None for at in others)},
        **blocks,
        "probes": rows,
        "cuts": cuts,
        "findings": [one.as_json() for one in [*findings, *cut_findings(cuts)]],
    })  # fmt: skip


def cut_rows(
    samples: Sequence[Sample], run: str, read_of: Mapping[str, Read], readings: Readings, *, draws: int
) -> list[dict[str, Any]]:
    """A row a cut: AUROC, rates, the paired ``change`` of the AUROC, and the thing as read after the last layer.

    ``read_of`` has what was read under each cut, ``AS_IT_IS`` among them.
    """
    margins = {name: one.margins for name, one in read_of.items()}
    arms, changes = compared(samples, margins, baseline=AS_IT_IS, seed=readings.seed, draws=draws)
    rows = []
    for name, one in read_of.items():
        things = {place: readings.thing(one.states[at][-1:], place, run)[0] for at, place in enumerate(PLACES)}
        rows.append({"run": run, "cut": name, **arms[name], "change": changes[name], "thing": things})
    return rows


def cut_findings(cuts: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What may be said of the AUROC under each cut, by the interval that holds for all cuts of a run at once."""
    return [
        Finding(CUT, deciding_statement(row["change"], studied=False), row["change"] or {},
                f"{row['run']}: {row['cut']}")
        for row in cuts if row["cut"] != AS_IT_IS
    ]  # fmt: skip


def exchanged_states(
    nouns: Float[Tensor, "layer row width"], others: Sequence[int | None]
) -> Float[Tensor, "state layer row width"]:
    """The states by ``STATES``; that of the other thing is NaN where there is none."""
    other = nouns[:, [at or 0 for at in others]].clone()
    other[:, [at is None for at in others]] = torch.nan
    return torch.stack([nouns, other, nouns.mean(1, keepdim=True).expand_as(nouns)])


def compare(
    samples: Sequence[Sample],
    own: Float[Tensor, " row"],
    margins: Float[Tensor, "state layer row"],
    layers: Sequence[int],
    *,
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """``picture``, the cases as they are, and ``transplants``, a row a state and layer with its paired difference."""
    arms = {PICTURE: own}
    keys = {f"{state}@{layer}": (state, layer) for state in STATES for layer in layers}
    arms |= dict(zip(keys, margins.flatten(0, 1), strict=True))
    metrics, changes = compared(samples, arms, baseline=PICTURE, seed=seed, draws=draws)
    transplants = [
        {"state": state, "layer": layer, **metrics[name], "change": changes[name]}
        for name, (state, layer) in keys.items() if name in metrics
    ]  # fmt: skip
    return {"picture": metrics[PICTURE], "transplants": transplants}


def conclude(row: Mapping[str, Any]) -> list[Finding]:
    """What may be said of one state at one layer.

    ``MOVED`` is the statement on the AUROC's paired difference from the picture as it is, by the interval that holds
    for all states and layers at once. ``FOLLOWS``, of the other thing alone: YES where that says FELL and the whole
    interval of the AUROC of the case's own truth lies below a half, which it may do with the picture as it is, too.
    """
    about = f"{row['state']}@{row['layer']}"
    moved = deciding_statement(row["change"], studied=False)
    found = [Finding(MOVED, moved, row["change"] or {}, about)]
    if row["state"] == OTHER:
        follows, evidence = follows_other(row)
        if follows is Answer.YES and moved is not Answer.FELL:
            follows = Answer.NOT_SHOWN
        found.append(Finding(FOLLOWS, follows, evidence, about))
    return found
