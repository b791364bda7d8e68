"""Parity: the same prompts asked of a model here and of an endpoint that serves it, and why the two differ.

It compares greedy answers, Yes/No margins and, if the endpoint gives them (``engine="vllm"``), the tokens of words and
of the picture. Causes are read off what differs and what does not; they are likely, not proved.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image

from experiments.api.client import Failed
from experiments.api.config import ApiConfig
from experiments.api.model import ApiModel
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError
from interp.prompt import Prompt
from mitigation.steps import check_words

if TYPE_CHECKING:
    from interp.vlm import VLM

TOKENS = 16  # of an answer
ASKED = ("answered", "truncated", "empty")
CLOSE = {torch.float32: 1e-2, torch.float16: 0.25, torch.bfloat16: 0.25}
"""How far margins of one model may lie apart by rounding (of pixels, too), in logits, by the number format here."""
SIZES = ((336, 336), (448, 448), (640, 480), (480, 640), (96, 96), (1024, 256), (224, 224), (700, 500), (64, 200),
         (1000, 1000))  # fmt: skip
QUESTIONS = (
    "Is this safe? Please start by answering Yes or No.",
    "Look at the picture before you answer. Is it safe to do what it shows?",
)
NO_MARGINS = "model.logprobs=auto asks for them; a vLLM lists 20 tokens where it is started with --max-logprobs 20"
IN_WORDS = (
    "Is it safe to eat bread?", "Is a knife a toy? Answer Yes or No.", "Name a colour.", "What is two and two?",
    "Is it safe to stand on a chair?\nAnswer Yes or No.", "Should a child play with matches?", "Say yes.",
    "Is ice hot?", "Können Kinder das essen? 🙂", "Is  it   safe?  ",
)  # fmt: skip


def thirty_prompts(*, words: bool) -> list[Prompt]:
    """Two questions about each of ten made-up pictures of several sizes, and ten in words (with ``words``)."""
    generator = torch.Generator().manual_seed(0)
    pictured = []
    for width, height in SIZES:
        small = torch.randint(0, 256, (6, 6, 3), generator=generator, dtype=torch.uint8).numpy()
        picture = Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR)
        pictured += [
            Prompt(text, picture, key=f"{width}×{height}, question {number}")
            for number, text in enumerate(QUESTIONS, start=1)
        ]
    return pictured + [Prompt(text, key=f"words {at}") for at, text in enumerate(IN_WORDS if words else (), start=1)]


@dataclass(frozen=True)
class Side:
    """One prompt on one side. ``tokens`` is None where they are not given; ``low`` and ``high`` bound the margin."""

    tokens: list[int] | None
    answer: str
    low: float
    high: float
    fault: str = ""


@dataclass
class Parity:
    """What both sides made of each prompt, and whether that is the same.

    ``close`` is how far margins may lie apart (logits). ``image_token`` is None if the picture is read without tokens
    of its own.
    """

    prompts: Sequence[Prompt]
    here: Sequence[Side]
    there: Sequence[Side]
    image_token: int | None
    close: float
    dtype: str
    decode: Callable[[Sequence[int]], str]
    unasked: str = ""

    def __post_init__(self) -> None:
        """Compare each prompt that the endpoint answered."""
        self.answered = [row for row, side in enumerate(self.there) if not side.fault]
        self.read = [row for row in self.answered if self.there[row].tokens is not None]
        self.reworded = [row for row in self.read if self._words(self.here[row]) != self._words(self.there[row])]
        self.rescaled = [row for row in self.read if self._patches(self.here[row]) != self._patches(self.there[row])]
        self.distances = {
            row: max(self.there[row].low - self.here[row].low, self.here[row].low - self.there[row].high, 0.0)
            for row in self.answered
            if not any(map(math.isnan, (self.here[row].low, self.there[row].low, self.there[row].high)))
        }
        self.far = [row for row, distance in self.distances.items() if distance > self.close]
        self.parted = [row for row in self.answered if self.here[row].answer != self.there[row].answer]

    @property
    def same(self) -> bool:
        """Whether all prompts were answered, tokens are equal if given, and margins, else answers, agree."""
        differ = self.reworded or self.rescaled or self.far or (self.parted and not self.distances)
        return len(self.answered) == len(self.prompts) and not differ

    def causes(self) -> list[str]:
        """Return likely reasons for the differences."""
        causes = []
        if self.reworded:
            row = self.reworded[0]
            mine, theirs = self._words(self.here[row]), self._words(self.there[row])
            pairs = enumerate(zip(mine, theirs, strict=False))
            first = next((at for at, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
            ours, other = (self.decode(ids[max(0, first - 4) : first + 8]) for ids in (mine, theirs))
            causes.append(
                f"{len(self.reworded)} prompts are written otherwise ({self.prompts[row].key}: {ours!r} here, "
                f"{other!r} there): another chat template, a system prompt or a second beginning token of the server's "
                "(vLLM: --chat-template; here: model.chat_template, model.template)"
            )
        if lost := [row for row in self.rescaled if not self._patches(self.there[row])]:
            causes.append(f"{len(lost)} pictures do not arrive: no token of them is read there")
        elif self.rescaled:
            row = self.rescaled[0]
            image = self.prompts[row].image
            width, height = (0, 0) if image is None else image.size
            causes.append(
                f"{len(self.rescaled)} pictures become another number of tokens (one of {width}×{height} pixels: "
                f"{self._patches(self.here[row])} here, {self._patches(self.there[row])} there): other limits on the "
                "picture's size (vLLM: --mm-processor-kwargs; here: min_pixels, max_pixels, longest_edge, max_tiles)"
            )
        if far := [row for row in self.far if row not in {*self.reworded, *self.rescaled}]:
            largest = max(self.distances[row] for row in far)
            coarse = f"{self.dtype} here and a coarser number format there (vLLM: --dtype float32)"
            weights = "other weights, another image processor, or sampling defaults that change log-probabilities"
            cause = coarse if largest <= CLOSE[torch.bfloat16] else weights
            causes.append(f"margins of {len(far)} prompts lie up to {largest:.2g} logits apart: {cause}")
        if not causes and self.parted:
            row = self.parted[0]
            causes.append(
                f"{len(self.parted)} answers part although prompts and margins agree ({self.prompts[row].key}: "
                f"{self.here[row].answer!r} here, {self.there[row].answer!r} there): two tokens that are nearly as "
                "likely, or defaults of the server's sampling (vLLM: --generation-config vllm)"
            )
        return causes

    def _words(self, side: Side) -> list[int]:
        return [token for token in side.tokens or () if token != self.image_token]

    def _patches(self, side: Side) -> int:
        return sum(token == self.image_token for token in side.tokens or ())

    def __str__(self) -> str:
        n, answered, read = len(self.prompts), len(self.answered), len(self.read)
        lines = [f"{n} prompts here ({self.dtype}) and there{self.unasked}"]
        if answered < n:
            fault = next(side.fault for side in self.there if side.fault)
            lines.append(f"not answered: {n - answered} of {n} (the first: {fault})")
        lines += [
            f"the same words, as tokens: {read - len(self.reworded)} of {read}",
            f"as many tokens of the picture: {read - len(self.rescaled)} of {read}",
        ] if read else ["tokens: not given by this endpoint (a vLLM gives them: model.engine=vllm)"]  # fmt: skip
        lines.append(f"the same answer, up to {TOKENS} tokens: {answered - len(self.parted)} of {answered}")
        if self.distances:
            bounds = sum(self.there[row].low < self.there[row].high for row in self.distances)
            by_bounds = f", {bounds} of them by bounds" if bounds else ""
            lines.append(
                f"margins within {self.close:g} logits: {len(self.distances) - len(self.far)} of {len(self.distances)}"
                f"{by_bounds} (largest difference {max(self.distances.values()):.1e})"
            )
        else:
            lines.append(f"margins: not given by this endpoint ({NO_MARGINS})")
        lines += [f"likely cause: {cause}" for cause in self.causes()]
        return "\n".join([*lines, "" if self.same else "not the same"]).rstrip()


def both_sides(endpoint: ApiConfig | None, name: str, twin: str | None, dtype: str = "auto") -> tuple["VLM", ApiModel]:
    """The model ``twin`` (a folder, hub id or bundled model) loaded here, and the one behind the endpoint ``name``.

    Raises:
        UserError: one of the two is missing.
    """
    from interp.loading import load

    if endpoint is None:
        raise UserError(
            f"task.twin={twin}: {name} is here, and a twin is of a model behind an endpoint; leave it out, or take "
            "model=api"
        )
    if twin is None:
        raise UserError(
            f"model {name} is only reached over an API; give the same model here to compare it with: "
            "task.twin=<folder or hub id>"
        )
    return load(ModelConfig(f"{name}, here", twin, dtype=dtype)), ApiModel(endpoint)


def parity(here: "VLM", there: ApiModel, prompts: Sequence[Prompt] | None = None) -> Parity:
    """Asks both sides the same ``prompts`` (default: thirty made-up ones, in words where the model can be so asked).

    Raises:
        UserError: the endpoint refuses the key, the model or the account, or there is none.
    """
    unasked = ""
    if prompts is None:
        try:
            check_words(here, "")
            words = True
        except UserError:
            words, unasked = False, "; none in words, which this family cannot be asked in"
        prompts = thirty_prompts(words=words)
    ours = [_here(here, prompt) for prompt in prompts]
    replies = there.generate(prompts, max_new_tokens=TOKENS)
    bounds = replies.bounds or [(margin, margin) for margin in replies.margins.tolist()]
    theirs = []
    for row, prompt in enumerate(prompts):
        status, why = ((column or [""] * len(prompts))[row] for column in (replies.statuses, replies.reasons))
        fault, tokens = "" if status in ASKED else f"{status}: {why}", None
        if not fault:
            try:
                tokens = there.tokens_of(prompt)
            except Failed as failure:
                fault = failure.reply.reason
        theirs.append(Side(tokens, replies.texts[row].strip(), *bounds[row], fault=fault))
    return Parity(
        prompts,
        ours,
        theirs,
        image_token=here.layout.image_token_id(here.model.config) if here.layout.image_token else None,
        close=CLOSE.get(here.dtype, CLOSE[torch.bfloat16]),
        dtype=str(here.dtype).removeprefix("torch."),
        decode=lambda tokens: str(here.tokenizer.decode(list(tokens), skip_special_tokens=False)),
        unasked=unasked,
    )


def _here(vlm: "VLM", prompt: Prompt) -> Side:
    encoded = vlm.encode([prompt])
    tokens = encoded["input_ids"][0][encoded["attention_mask"][0].bool()].tolist()
    given = vlm.generate([prompt], max_new_tokens=TOKENS)
    margin = float(given.margins[0])
    return Side(tokens, given.texts[0].strip(), margin, margin)
