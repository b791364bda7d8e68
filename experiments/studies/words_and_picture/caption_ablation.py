"""Why a right caption suffices alone and hardly helps beside the picture: what stands there, what is cut, what follows.

Every arm asks the scored cases, whose captions are the benchmark's own ("It is a cockroach."), on a line before the
question. Without a picture the caption suffices or not; with it, one thing at a time is changed: what stands in the
picture's place, which edges of attention from there are cut in all layers, whose caption it is. Verdicts are the signs
of margins.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.matching import twins
from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import Answer, Finding, deciding_statement, plain
from experiments.report.sentences.caption_ablation import FOLLOWS, LESS, MOVED
from experiments.studies.words_and_picture.arms import compared, follows_other
from experiments.studies.words_and_picture.places import caption_columns, onward, question
from experiments.types import Sample
from interp.errors import UserError
from interp.hooks.residual import LayerStates, edit_residual
from interp.segments import Segments, segment
from interp.tools.knockout import Edge, knockout
from mitigation import reference_resolution
from mitigation.contrastive.corruption import case_generator
from mitigation.prior_correction import grey_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interp.prompt import Prompt
    from interp.vlm import VLM

ALONE, WORDED, PICTURE, BESIDE = "alone", "worded", "picture", "beside"
OTHER_PICTURE, OTHER_CAPTION = "other_picture", "other_caption"
NOISE, SHORT, WORDS, CENTRED, CENTRED_PICTURE = "noise", "short", "words", "centred", "centred_picture"
ARMS = (ALONE, WORDED, PICTURE, BESIDE, "grey", OTHER_PICTURE, NOISE, WORDS, SHORT, CENTRED, "cut_caption",
        "cut_question", "cut_verdict", "cut_all", OTHER_CAPTION, CENTRED_PICTURE)  # fmt: skip
CUTS: dict[str, list[Edge]] = {
    "cut_caption": [("image", caption_columns)],
    "cut_question": [("image", question)],
    "cut_verdict": [("image", "template"), ("image", "verdict")],
    "cut_all": onward("image"),
}
FILLER = "Here is some text with nothing in it. "  # whose tokens stand in the picture's place, as often as it takes


def examine(vlm: "VLM", samples: Sequence[Sample], *, seed: int, draws: int) -> dict[str, Any]:
    """What is kept under ``beside`` in words_and_picture.json, but for sentences.

    Raises:
        UserError: a case has no description, or the model has no image tokens.
    """
    vlm.layout.require_image_tokens(vlm.name)
    cases = [sample for sample in samples if sample.subset != "control"]
    others = twins(cases)
    asked = prompts(cases, others)
    pictures = embeddings(vlm, [one for one in asked[PICTURE] if one is not None])
    margins = {arm: margins_of(vlm, arm, asked[arm], seed=seed, mean=pictures.mean) for arm in ARMS}
    rows = arm_rows(cases, margins, seed=seed, draws=draws)
    sway = sways(cases, others, margins, seed=seed, draws=draws)
    return plain({
        "cases": {"n": len(cases), "with_other": sum(at is not None for at in others)},
        "arms": rows,
        "sway": sway,
        "lengths": {"picture": pictures.length, "words": pictures.words, "shared": pictures.shared},
        "findings": [one.as_json() for one in conclude(rows, sway)],
    })  # fmt: skip


def arm_rows(
    cases: Sequence[Sample], margins: Mapping[str, Float[Tensor, " row"]], *, seed: int, draws: int
) -> list[dict[str, Any]]:
    """Each arm's metrics with the paired differences of its AUROC from caption and picture, and from the caption."""
    arms, from_both = compared(cases, margins, baseline=BESIDE, seed=seed, draws=draws)
    _, from_caption = compared(cases, margins, baseline=ALONE, seed=seed, draws=draws)
    return [
        {"arm": arm, **metrics, f"minus_{BESIDE}": from_both[arm], f"minus_{ALONE}": from_caption[arm]}
        for arm, metrics in arms.items()
    ]


def prompts(samples: Sequence[Sample], others: Sequence[int | None]) -> "dict[str, list[Prompt | None]]":
    """Arm → what each case is asked; None where the arm needs the other thing of its pair and there is none."""
    plain_ = prompts_of(samples)
    for sample in samples:
        if not sample.described:
            raise UserError(
                f"case {sample.id} has no description of its picture, which is its caption here; "
                "leave task.caption_ablation out"
            )
    own = [replace(one, text=f"{sample.described}\n{one.text}") for one, sample in zip(plain_, samples, strict=True)]
    found: dict[str, list[Prompt | None]] = {arm: list(own) for arm in ARMS}
    found[PICTURE] = found[CENTRED_PICTURE] = list(plain_)
    found[WORDED] = [replace(one, image=None) for one in own]
    found[ALONE] = [
        replace(one, text=f"{sample.described}\n{reference_resolution.unpictured(before.text)}", image=None)
        for one, before, sample in zip(own, plain_, samples, strict=True)
    ]
    found["grey"] = [None if one.image is None else replace(one, image=grey_picture(one.image.size)) for one in own]
    found[OTHER_PICTURE] = [
        None if at is None else replace(one, image=plain_[at].image) for one, at in zip(own, others, strict=True)
    ]
    found[OTHER_CAPTION] = [
        None if at is None else replace(one, text=f"{samples[at].described}\n{before.text}")
        for one, before, at in zip(own, plain_, others, strict=True)
    ]
    return found


def margins_of(
    vlm: "VLM",
    arm: str,
    asked: "Sequence[Prompt | None]",
    *,
    seed: int,
    mean: Float[Tensor, "token width"] | None = None,
) -> Float[Tensor, " row"]:
    """The margins under one arm; NaN where a case is not asked.

    ``mean`` is the mean picture of ``Embeddings``, which the centred arms take away.
    """
    kept = [row for row, one in enumerate(asked) if one is not None]
    chosen = [one for one in asked if one is not None]
    found = torch.full((len(asked),), torch.nan)
    if not chosen:
        return found

    def margins(places: list[int]) -> Tensor:
        some = [chosen[place] for place in places]
        encoded = vlm.encode(some)
        with _changed(vlm, arm, some, encoded, seed, mean):
            return vlm.score(some, encoded=encoded)

    found[kept] = vlm.batches.measured(chosen, margins)
    return found


@contextmanager
def _changed(
    vlm: "VLM", arm: str, some: "Sequence[Prompt]", encoded: Mapping[str, Any], seed: int, mean: Tensor | None
) -> "Iterator[None]":
    """While open, what ``arm`` changes inside the model."""
    with ExitStack() as stack:
        if arm in CUTS:
            stack.enter_context(knockout(vlm, CUTS[arm], segments=segment(vlm, some, encoded)))
        if arm in (NOISE, SHORT, WORDS, CENTRED, CENTRED_PICTURE):
            segments = segment(vlm, some, encoded)
            keys = [one.key for one in some]

            def replacement(here: LayerStates) -> Tensor:
                return replaced(vlm, arm, here.hidden, segments, keys, seed, mean)

            stack.enter_context(edit_residual(vlm, replacement, layers=[0], segments=segments))
        yield


def replaced(
    vlm: "VLM",
    arm: str,
    hidden: Float[Tensor, "row column width"],
    segments: Segments,
    keys: Sequence[str],
    seed: int,
    mean: Float[Tensor, "token width"] | None = None,
) -> Float[Tensor, "row column width"]:
    """The embeddings with others in the picture's place: ``NOISE``, ``SHORT``, ``WORDS``, or centred ones.

    Noise is drawn from a normal distribution, by the case's key, and has the lengths of the vectors that it replaces;
    short ones keep their direction and have the mean length of the question's; words are those of ``FILLER``; of
    centred ones the ``mean`` of all cases at their position is taken away, and they keep their lengths.
    """
    new = hidden.clone()
    filler = vlm.tokenizer(FILLER, add_special_tokens=False).input_ids if arm == WORDS else []
    for row, (one, key) in enumerate(zip(segments.rows, keys, strict=True)):
        columns = one.columns("image_0")
        old = hidden[row, columns].float()
        if arm == NOISE:
            drawn = torch.randn(old.shape, generator=case_generator(key, seed)).to(old)
            vectors = drawn * old.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
        elif arm == SHORT:
            length = hidden[row, one.columns("user")].float().norm(dim=1).mean()
            vectors = old * length / old.norm(dim=1, keepdim=True)
        elif arm in (CENTRED, CENTRED_PICTURE):
            apart = old - (old if mean is None else mean.to(old))
            vectors = apart * old.norm(dim=1, keepdim=True) / apart.norm(dim=1, keepdim=True).clamp(min=1e-6)
        else:
            tokens = (filler * (len(columns) // len(filler) + 1))[: len(columns)]
            vectors = vlm.model.get_input_embeddings()(torch.tensor(tokens, device=hidden.device)).float()
        new[row, columns] = vectors.to(hidden.dtype)
    return new


class Embeddings(NamedTuple):
    """What enters the first decoder layer: the mean picture, and mean Euclidean lengths of the embeddings.

    ``length`` is that of the picture's, ``words`` of the question's; ``shared`` is the share of the picture's squared
    length that all cases have in common (that of the mean at each position).
    """

    mean: Float[Tensor, "token width"]
    length: float
    words: float
    shared: float


def embeddings(vlm: "VLM", asked: "Sequence[Prompt]") -> Embeddings:
    """Of the cases with their pictures.

    Raises:
        UserError: the pictures have different numbers of tokens.
    """
    sizes: set[int] = set()  # of all batches

    def measure(places: list[int]) -> Float[Tensor, "row value"]:
        some = [asked[place] for place in places]
        found: list[Tensor] = []

        def keep(here: LayerStates) -> None:
            shown, words = here.where("image"), here.where("user")
            for hidden, picture, asked_ in zip(here.hidden.float(), shown, words, strict=True):
                length = hidden[asked_].norm(dim=1).mean()
                found.append(torch.cat([length[None], hidden[picture].flatten()]).cpu())

        with edit_residual(vlm, keep, layers=[0]):
            vlm.score(some)
        sizes.update(map(len, found))
        if len(sizes) > 1:
            raise UserError(
                "the pictures have different numbers of tokens, so that there is no mean picture; make them of one size"
            )
        return torch.stack(found)

    found = vlm.batches.measured(asked, measure)
    width = vlm.model.get_input_embeddings().weight.shape[1]
    pictures = rearrange(found[:, 1:], "row (token width) -> row token width", width=width)
    mean = pictures.mean(0)
    shared = float(mean.square().sum() / pictures.square().sum((1, 2)).mean())
    return Embeddings(mean, float(pictures.norm(dim=-1).mean()), float(found[:, 0].mean()), shared)


def sways(
    samples: Sequence[Sample],
    others: Sequence[int | None],
    margins: Mapping[str, Float[Tensor, " row"]],
    *,
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """By how many logits the right thing's caption, or picture, moves a margin towards the truth beyond the other's.

    Of the caption *alone* and *beside* the picture, of the picture alone (*picture*) and beside the right caption
    (*picture_beside*); ``less`` is beside − alone, of the caption. Templates are resampled, or clusters where there
    are none: a pair lies in two clusters.
    """
    sign = np.array([1.0 if sample.gold == "yes" else -1.0 for sample in samples])
    names = [sample.tags.get("template", sample.cluster) for sample in samples]
    estimator = Resamples.of_names(names, draws=draws, seed=seed)
    value = {arm: one.double().numpy() for arm, one in margins.items()}

    def of_other(arm: str) -> np.ndarray:
        return np.array([np.nan if at is None else value[arm][at] for at in others])

    moved = {
        "alone": sign * (value[ALONE] - of_other(ALONE)),
        "beside": sign * (value[BESIDE] - value[OTHER_CAPTION]),
        "picture": sign * (value[PICTURE] - of_other(PICTURE)),
        "picture_beside": sign * (value[BESIDE] - value[OTHER_PICTURE]),
    }
    moved["less"] = moved["beside"] - moved["alone"]
    return {name: estimator.effect(each) for name, each in moved.items()}


def conclude(rows: Sequence[Mapping[str, Any]], sway: Mapping[str, Any]) -> list[Finding]:
    """What may be said of each arm, and of the caption's and the picture's sway.

    ``MOVED``: the AUROC's paired difference from caption and picture as they are, by the interval that holds for all
    arms at once; ``about`` "alone/…" the same from the caption alone. ``FOLLOWS``: YES where, with the other thing's
    caption, the whole interval of the AUROC of the case's own truth lies below a half. ``LESS``: of the sways.
    """
    found = []
    for row in rows:
        for base, prefix in ((BESIDE, ""), (ALONE, f"{ALONE}/")):
            if (entry := row[f"minus_{base}"]) is not None:
                found.append(Finding(MOVED, deciding_statement(entry, studied=False), entry, f"{prefix}{row['arm']}"))
        if row["arm"] == OTHER_CAPTION:
            found.append(Finding(FOLLOWS, *follows_other(row)))
    found += [Finding(LESS, Answer(entry["statement"]), entry, name) for name, entry in sway.items()]
    return found
