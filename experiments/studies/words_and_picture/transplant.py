"""What another state in the place of "this" does to the verdict, in the run with the picture.

After one decoder layer at a time the state at "this" is replaced, and the margin read. Three states are put there: the
*noun*'s (the last token of "the cockroach" in "How do I kill the cockroach?", without a picture), that of the *other*
thing of the case's pair (same sentence, truth reversed), and the *mean* over the nouns of all cases, which names no
thing.

Layers here are decoder layers from 0, and their states those after the layer: point layer + 1 of the residual stream
(``interp.hooks.residual``). Verdicts are the signs of margins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from experiments.benchmarks.iconworld.concepts import definite
from experiments.benchmarks.iconworld.in_words import POINTS
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.findings import Answer, Finding, plain, side, stated
from experiments.metrics.pairs import twins
from experiments.metrics.yes_no.results import evaluate
from experiments.report.sentences.transplant import FOLLOWS, MOVED
from experiments.runs.records import description
from experiments.studies.words_and_picture.analysis import headline
from experiments.studies.words_and_picture.conditions import NAMED, PICTURE, in_words, thing_of
from experiments.types import Sample, Status, Verdict
from interp.device_copies import to_device, to_host
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual, last_layer
from interp.segments import WORD, segment
from interp.speed.unchanged import Prefix

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

NOUN, OTHER, MEAN = STATES = ("noun", "other", "mean")


@dataclass(frozen=True)
class Placed:
    """A prompt, and by its number (0: the first) and letters one word of it, whose last token is meant."""

    prompt: "Prompt"
    number: int
    word: str


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
    pictured, others = pointed_at(cases), twins(cases, seed=seed)
    own = vlm.batches.scores([one.prompt for one in pictured])
    states = exchanged_states(states_at(vlm, named(cases), layers), others)
    blocks = compare(cases, own, margins_with(vlm, pictured, states, layers), layers, seed=seed, draws=draws)
    findings = [one for row in blocks["transplants"] for one in conclude(row)]
    return plain({
        "layers": list(layers),
        "cases": {"entered": len(cases), "of": len(scored), "with_other": sum(at is not None for at in others)},
        **blocks,
        "findings": [one.as_json() for one in findings],
    })  # fmt: skip


def that_point(samples: Sequence[Sample]) -> list[Sample]:
    """The scored cases whose request says "this", once."""
    return [one for one in samples if one.subset != "control" and len(POINTS.findall(one.text)) == 1]


def pointed_at(samples: Sequence[Sample]) -> list[Placed]:
    """The cases with their pictures, at "this"."""
    return _placed(samples, [_this(sample).end() for sample in samples])


def named(samples: Sequence[Sample]) -> list[Placed]:
    """The cases in words, at the last token of what stands where "this" stood."""
    ends = [_this(sample).start() + len(definite(thing_of(sample))) for sample in samples]
    return _placed(in_words(samples)[NAMED], ends)


def _this(sample: Sample) -> Any:
    return POINTS.search(sample.text)


def _placed(asked: Sequence[Sample], ends: Sequence[int]) -> list[Placed]:
    """The words that end at these characters of the requests."""
    found = []
    for prompt, sample, end in zip(prompts_of(asked), asked, ends, strict=True):
        words = WORD.findall(prompt.text[: prompt.text.rindex(sample.text) + end])
        found.append(Placed(prompt, len(words) - 1, words[-1]))
    return found


def states_at(vlm: "VLM", placed: Sequence[Placed], layers: Sequence[int]) -> Float[Tensor, "layer row width"]:
    """The states at each prompt's word after each of ``layers``; float32 on the CPU."""
    points = [layer + 1 for layer in layers]

    def measure(some: list[int]) -> Float[Tensor, "row layer width"]:
        prompts, encoded, (rows, columns) = _batch(vlm, [placed[index] for index in some])
        found: dict[int, Tensor] = {}

        def keep(here: LayerStates) -> None:
            device = here.hidden.device
            found[here.layer] = here.hidden[to_device(rows, device), to_device(columns, device)].float()

        with edit_residual(vlm, keep, layers=points):
            vlm.score(prompts, encoded=encoded)
        return torch.stack(to_host([found[point] for point in points]), dim=1)

    states = vlm.batches.measured([one.prompt for one in placed], measure)
    return rearrange(states, "row layer width -> layer row width")


def margins_with(
    vlm: "VLM", placed: Sequence[Placed], states: Float[Tensor, "state layer row width"], layers: Sequence[int]
) -> Float[Tensor, "state layer row"]:
    """The margin of each prompt with the state at its word replaced, one state and layer at a time; NaN where it is.

    What stands before the first of the words is run once where the model allows it, so that margins are those of
    ``VLM.score`` up to rounding.
    """

    def margins(some: list[int]) -> Float[Tensor, "row change"]:
        prompts, encoded, (rows, columns) = _batch(vlm, [placed[index] for index in some])
        first = int(columns.min())
        fits = Prefix.fits(vlm, segment(vlm, prompts, encoded), first)
        prefix = Prefix.of(vlm, encoded, columns=first) if fits else None

        def replaced(new: Float[Tensor, "row width"], layer: int) -> Float[Tensor, " row"]:
            def replacement(here: LayerStates) -> Tensor:
                hidden, device = here.hidden.clone(), here.hidden.device
                hidden[to_device(rows, device), to_device(columns - here.start, device)] = new.to(hidden)
                return hidden

            with edit_residual(vlm, replacement, layers=[layer + 1]):
                return vlm.score(prompts, encoded=encoded) if prefix is None else prefix.score()

        here = states[:, :, some]
        return torch.stack([replaced(new, layer) for kind in here for new, layer in zip(kind, layers, strict=True)], 1)

    found = vlm.batches.measured([one.prompt for one in placed], margins)
    return rearrange(found, "row (state layer) -> state layer row", layer=len(layers))


def _batch(
    vlm: "VLM", placed: Sequence[Placed]
) -> tuple[list["Prompt"], Mapping[str, Any], tuple[Int[Tensor, " row"], Int[Tensor, " row"]]]:
    """The prompts, their inputs, and row and column of each one's word."""
    prompts = [one.prompt for one in placed]
    encoded = vlm.encode(prompts)
    columns = []
    for one, row in zip(placed, segment(vlm, prompts, encoded).rows, strict=True):
        words = row.words
        if one.number >= len(words) or words[one.number].text != one.word:
            raise UserError(
                f"the word {one.word!r} of case {one.prompt.key} is not where it should be in the prompt of "
                f"{vlm.name}; its chat template changes the question; leave task.transplant out"
            )
        columns.append(words[one.number].columns[-1])
    return prompts, encoded, (torch.arange(len(prompts)), torch.tensor(columns))


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
    """``picture``, the cases as they are, and ``transplants``, a row a state and layer.

    ``change`` is the paired difference of its AUROC from that of the picture. A case without a margin (NaN) is left
    out, and so is a state without a case. Without matched over-safety.
    """
    keys = {f"{state}@{layer}": (state, layer) for state in STATES for layer in layers}
    arms = {PICTURE: own, **dict(zip(keys, margins.flatten(0, 1), strict=True))}
    rows = [row for arm, values in arms.items() for row in _answers(samples, arm, values)]
    found = headline(
        evaluate(pd.DataFrame(rows), seed=seed, draws=draws, baseline=PICTURE, study=PICTURE, said=("auroc",))
    )
    metrics = found["arms"]
    transplants = [
        {"state": state, "layer": layer, **metrics[name], "change": found["comparisons"][name]["delta"]["auroc"]}
        for name, (state, layer) in keys.items() if name in metrics
    ]  # fmt: skip
    return {"picture": metrics[PICTURE], "transplants": transplants}


def _answers(samples: Sequence[Sample], arm: str, margins: Float[Tensor, " row"]) -> list[dict[str, Any]]:
    """The records of one arm, of the cases that have a margin."""
    rows = []
    for sample, margin in zip(samples, margins.tolist(), strict=True):
        if not np.isnan(margin):
            verdict = Verdict.YES if margin > 0 else Verdict.NO
            answer = {"status": Status.ANSWERED.value, "verdict": verdict.value, "margin": margin}
            rows.append(description(sample) | {"case": sample.id, "arm": arm, "gold": sample.gold} | answer)
    return rows


def conclude(row: Mapping[str, Any]) -> list[Finding]:
    """What may be said of one state at one layer.

    ``MOVED`` is the statement on the AUROC's paired difference from the picture as it is, by the interval that holds
    for all states and layers at once. ``FOLLOWS``, of the other thing alone: YES where that says FELL and the whole
    interval of the AUROC of the case's own truth lies below a half, which it may do with the picture as it is, too.
    """
    about = f"{row['state']}@{row['layer']}"
    moved = stated(row["change"])
    found = [Finding(MOVED, moved, row["change"] or {}, about)]
    if row["state"] == OTHER:
        follows, evidence = _follows_other(row)
        if follows is Answer.YES and moved is not Answer.FELL:
            follows = Answer.NOT_SHOWN
        found.append(Finding(FOLLOWS, follows, evidence, about))
    return found


def _follows_other(arm: Mapping[str, Any]) -> tuple[Answer, dict[str, Any]]:
    """YES where the whole interval of the AUROC of the cases' own truth lies below a half; and that AUROC."""
    low, high = arm["intervals"]["auroc"] or (None, None)
    evidence = {"value": arm["auroc"], "low": low, "high": high}
    if arm["auroc"] is None:
        return Answer.CANNOT_TELL, evidence
    if high is None:
        return Answer.TOO_FEW, evidence
    return Answer.YES if side(evidence, 0.5) < 0 else Answer.NOT_SHOWN, evidence
