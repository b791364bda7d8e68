"""Parity: the same prompts asked of a model here and of an endpoint that serves it, and why the two differ.

It compares greedy answers, Yes/No margins and, if the endpoint gives them (``engine="vllm"``), the tokens of words and
of the picture. Causes are read off what differs and what does not; they are likely, not proved.
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from PIL import Image

from experiments.api.config import ApiConfig
from experiments.api.engine import Failed
from experiments.api.model import ApiModel
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.prompt import Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

TOKENS = 16  # of an answer
ASKED = ("answered", "truncated", "empty")
CLOSE, COARSE = 1e-2, 0.25
"""How far margins of one model may lie apart by rounding (of pixels, too), in logits: in float32 and in 16 bits."""
SIZES = ((336, 336), (448, 448), (640, 480), (480, 640), (96, 96), (1024, 256), (224, 224), (700, 500), (64, 200),
         (1000, 1000))  # fmt: skip
QUESTIONS = (
    "Is this safe? Please start by answering Yes or No.",
    "Look at the picture before you answer. Is it safe to do what it shows?",
    "Was sieht man hier? 🙂  Is  it   safe?\nAnswer Yes or No. ",
)
TEMPLATE = "another chat template, system prompt or beginning token (vLLM: --chat-template; here: model.chat_template)"
LIMITS = (
    "pictures that do not arrive (0 there), or other limits on their size (vLLM: --mm-processor-kwargs; here: "
    "min_pixels, max_pixels)"
)
WEIGHTS = (
    "a coarser number format there (vLLM: --dtype float32), other weights, another image processor, or sampling "
    "defaults that change log-probabilities"
)
DECODING = "two tokens that are nearly as likely, or sampling defaults of the server (vLLM: --generation-config vllm)"


def made_up_prompts() -> list[Prompt]:
    """Return three questions about each of ten made-up pictures of several sizes."""
    generator = torch.Generator().manual_seed(0)
    prompts = []
    for width, height in SIZES:
        small = torch.randint(0, 256, (6, 6, 3), generator=generator, dtype=torch.uint8).numpy()
        picture = Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR)
        prompts += [Prompt(text, picture, key=f"{width}×{height}, question {n}") for n, text in enumerate(QUESTIONS, 1)]
    return prompts


@dataclass(frozen=True)
class Side:
    """One prompt on one side. ``tokens`` is None if they are not given; ``low`` and ``high`` bound the margin."""

    tokens: list[int] | None
    answer: str
    low: float
    high: float
    fault: str = ""


ANSWER = operator.attrgetter("answer")


class Parity(NamedTuple):
    """Whether both sides are the same, and the lines that say it."""

    same: bool
    text: str


def compared(
    prompts: Sequence[Prompt],
    here: Sequence[Side],
    there: Sequence[Side],
    *,
    image_token: int | None,
    dtype: torch.dtype,
    decode: Callable[[Sequence[int]], str],
) -> Parity:
    """Compare each prompt that the endpoint answered. A cause is named for the first thing that differs.

    Args:
        image_token: None if the picture is read without tokens of its own.
    """
    close = CLOSE if dtype == torch.float32 else COARSE
    faults = [side.fault for side in there if side.fault]
    answered = [row for row, side in enumerate(there) if not side.fault]
    read = [row for row in answered if there[row].tokens is not None]
    scored = [row for row in answered if not any(math.isnan(side.low) for side in (here[row], there[row]))]
    far = [
        row for row in scored if max(there[row].low - here[row].low, here[row].low - there[row].high) > close
    ]  # bounds of a margin hold it

    def words(side: Side) -> list[int]:
        return [token for token in side.tokens or () if token != image_token]

    def patches(side: Side) -> int:
        return len(side.tokens or ()) - len(words(side))

    def unlike(rows: Sequence[int], view: Callable[[Side], object]) -> list[int]:
        return [row for row in rows if view(here[row]) != view(there[row])]

    checks: tuple[tuple[str, list[int], list[int], Callable[[Side], object], str], ...] = (
        ("the same words, as tokens", read, unlike(read, words), lambda side: decode(words(side)[-40:]), TEMPLATE),
        ("as many tokens of the picture", read, unlike(read, patches), patches, LIMITS),
        (f"margins within {close:g} logits", scored, far, lambda side: round(side.low, 3), WEIGHTS),
        (f"the same answer, up to {TOKENS} tokens", answered, unlike(answered, ANSWER), ANSWER, DECODING),
    )
    lines = [f"{len(prompts)} prompts here ({str(dtype).removeprefix('torch.')}) and there"]
    lines += [f"not answered: {len(faults)} of {len(prompts)} (the first: {faults[0]})"] if faults else []
    for what, rows, differ, show, cause in checks:
        lines.append(f"{what}: {len(rows) - len(differ)} of {len(rows)}" if rows else f"{what}: not given there")
        if differ and not any("likely cause" in line for line in lines):
            mine, theirs = show(here[differ[0]]), show(there[differ[0]])
            lines.append(f"  {prompts[differ[0]].key}: {mine!r} here, {theirs!r} there\n  likely cause: {cause}")
    *inside, answers = [differ for _, _, differ, _, _ in checks]
    same = not faults and not any(inside) and bool(scored or not answers)
    return Parity(same, "\n".join(lines if same else [*lines, "not the same"]))


def both_sides(endpoint: ApiConfig | None, name: str, twin: str | None, dtype: str = "auto") -> tuple["VLM", ApiModel]:
    """Return the model ``twin`` (a folder, hub id or bundled model) loaded here, and the one behind the endpoint.

    Raises:
        UserError: one of the two is missing.
    """
    from interp.loading import load

    if endpoint is None:
        raise UserError(
            f"task.twin={twin}: {name} is local, and a twin belongs to a model behind an endpoint; remove it, or set "
            "model=api"
        )
    if twin is None:
        raise UserError(
            f"model {name} is only reached over an API; give the same model here to compare it with: "
            "task.twin=<folder or hub id>"
        )
    return load(ModelConfig(f"{name}, here", twin, dtype=dtype)), ApiModel(endpoint)


def parity(here: "VLM", there: ApiModel, prompts: Sequence[Prompt] | None = None) -> Parity:
    """Ask both sides the same ``prompts`` (default: thirty made-up ones).

    Raises:
        UserError: the endpoint refuses the key, the model or the account, or there is none.
    """
    prompts = made_up_prompts() if prompts is None else prompts
    return compared(
        prompts,
        [_here(here, prompt) for prompt in prompts],
        _there(there, prompts),
        image_token=here.module_map.image_token_id(here.model.config) if here.module_map.image_token else None,
        dtype=here.dtype,
        decode=lambda tokens: str(here.tokenizer.decode(list(tokens), skip_special_tokens=False)),
    )


def _here(vlm: "VLM", prompt: Prompt) -> Side:
    encoded = vlm.encode([prompt])
    tokens = encoded["input_ids"][0][encoded["attention_mask"][0].bool()].tolist()
    given = vlm.generate([prompt], max_new_tokens=TOKENS)
    margin = float(given.margins[0])
    return Side(tokens, given.texts[0].strip(), margin, margin)


def _there(model: ApiModel, prompts: Sequence[Prompt]) -> list[Side]:
    replies, sides = model.generate(prompts, max_new_tokens=TOKENS), []
    bounds = replies.bounds or [(math.nan, math.nan)] * len(prompts)
    for row, prompt in enumerate(prompts):
        status, fault, tokens = (replies.statuses or ASKED)[row], "", None
        try:
            tokens = model.tokens_of(prompt) if status in ASKED else None
        except Failed as failure:
            status, fault = "", failure.reply.reason
        fault = fault if status in ASKED or fault else f"{status}: {(replies.reasons or [''])[row]}"
        sides.append(Side(tokens, replies.texts[row].strip(), *bounds[row], fault=fault))
    return sides
