"""Parity: the same prompts asked of a model here and of an endpoint that serves it, and why the two differ.

Compared are the tokens that each reads (where the endpoint gives them: ``engine="vllm"``), those of the picture apart
from the others, greedy answers, and Yes/No margins. Causes are read off what differs and what does not; they are
likely, not proved.
"""

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


@dataclass(frozen=True)
class Parity:
    """What both sides made of each prompt, and whether that is the same.

    ``close`` is how far margins may lie apart (logits). ``same`` holds where all were asked, tokens are equal where
    they are given, and margins are close, or, without margins, answers equal.
    """

    prompts: Sequence[Prompt]
    here: Sequence[Side]
    there: Sequence[Side]
    image_token: int | None  # None: the picture is read without tokens of its own
    close: float
    dtype: str
    decode: Callable[[Sequence[int]], str]
    unasked: str = ""

    @property
    def rows(self) -> list[int]:
        """The prompts that the endpoint answered."""
        return [row for row, side in enumerate(self.there) if not side.fault]

    @property
    def known(self) -> list[int]:
        """Those of which it gave the tokens."""
        return [row for row in self.rows if self.there[row].tokens is not None]

    @property
    def otherwise(self) -> list[int]:
        """Those whose tokens differ but for the picture's."""
        return [row for row in self.known if self._text(self.here[row]) != self._text(self.there[row])]

    @property
    def pictures(self) -> list[int]:
        """Those whose picture becomes another number of tokens."""
        return [row for row in self.known if self._pictured(self.here[row]) != self._pictured(self.there[row])]

    @property
    def apart(self) -> dict[int, float]:
        """How far the margins of each prompt lie apart, at least (logits); of those that have any."""
        found = {}
        for row in self.rows:
            own, other = self.here[row].low, self.there[row]
            if own == own and other.low == other.low and other.high == other.high:
                found[row] = max(other.low - own, own - other.high, 0.0)
        return found

    @property
    def far(self) -> list[int]:
        """Those whose margins are not close."""
        return [row for row, off in self.apart.items() if off > self.close]

    @property
    def answers(self) -> list[int]:
        """Those whose answers differ."""
        return [row for row in self.rows if self.here[row].answer != self.there[row].answer]

    @property
    def same(self) -> bool:
        """See the class."""
        asked = len(self.rows) == len(self.prompts)
        return asked and not (self.otherwise or self.pictures or self.far or (self.answers and not self.apart))

    def causes(self) -> list[str]:
        """Why they differ, as far as that can be read off."""
        found = []
        if self.otherwise:
            found.append(self._written())
        if lost := [row for row in self.pictures if not self._pictured(self.there[row])]:
            found.append(
                f"{len(lost)} pictures do not arrive: no token of them is read there (a model of text alone, or a "
                "template without a place for a picture)"
            )
        if scaled := [row for row in self.pictures if row not in lost]:
            row = scaled[0]
            image = self.prompts[row].image
            size = "" if image is None else f" of {image.size[0]}×{image.size[1]} pixels"
            found.append(
                f"{len(scaled)} pictures become another number of tokens (one{size}: "
                f"{self._pictured(self.here[row])} here, {self._pictured(self.there[row])} there): other limits on the "
                "picture's size (vLLM: --mm-processor-kwargs; here: min_pixels, max_pixels, longest_edge, max_tiles; "
                "model.max_image_side scales before sending)"
            )
        differ = {*self.otherwise, *self.pictures}
        far = [row for row in self.far if row not in differ]
        if far:
            found.append(self._margins(far))
        parted = [row for row in self.answers if row not in {*differ, *far}]
        if parted:
            row = parted[0]
            found.append(
                f"{len(parted)} answers part although prompts and margins agree ({self.prompts[row].key}: "
                f"{self.here[row].answer!r} here, {self.there[row].answer!r} there): two tokens that are nearly as "
                "likely, or defaults of the server's sampling, such as a repetition penalty (vLLM: --generation-config "
                "vllm leaves those of generation_config.json out)"
            )
        return found

    def _written(self) -> str:
        row = self.otherwise[0]
        own, other = self._text(self.here[row]), self._text(self.there[row])
        count = len(self.otherwise)
        if len(other) == len(own) + 1 and other[1:] == own:
            return (
                f"{count} prompts begin with one token more there ({self.decode(other[:1])!r}): the template writes "
                "the token of the beginning and the server adds it again"
            )
        at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other)))
        one, two = (self.decode(ids[max(0, at - 4) : at + 8]) for ids in (own, other))
        return (
            f"{count} prompts are written otherwise ({self.prompts[row].key}: {one!r} here, {two!r} there): "
            "another chat template, or a system prompt of the server's (vLLM: --chat-template; here: "
            "model.chat_template, model.template)"
        )

    def _margins(self, far: Sequence[int]) -> str:
        largest = max(self.apart[row] for row in far)
        pictured = {row for row in far if self.prompts[row].image is not None}
        in_words = [row for row in self.apart if self.prompts[row].image is None]
        alike = "with the same tokens " if self.known else ""
        said = f"margins of {len(far)} prompts {alike}lie up to {largest:.2g} logits apart"
        if in_words and pictured == set(far):
            return (
                f"{said}, all with a picture, while {len(in_words)} in words agree: the picture's pixels are made "
                "otherwise (another image processor or resampling), or another picture arrives"
            )
        if largest <= CLOSE[torch.bfloat16]:
            return f"{said}: {self.dtype} here and a coarser number format there (vLLM: --dtype float32)"
        return (
            f"{said}: other weights (another revision, an adapter, a quantisation), sampling defaults that change "
            f"log-probabilities{'' if self.known else ', or another prompt, which tokens would tell'}"
        )

    def _text(self, side: Side) -> list[int]:
        return [one for one in side.tokens or () if one != self.image_token]

    def _pictured(self, side: Side) -> int:
        return sum(one == self.image_token for one in side.tokens or ())

    def __str__(self) -> str:
        n, known = len(self.prompts), self.known
        lines = [f"{n} prompts here ({self.dtype}) and there{self.unasked}"]
        if len(self.rows) < n:
            row = next(at for at in range(n) if at not in self.rows)
            lines.append(f"not answered: {n - len(self.rows)} of {n} (the first: {self.there[row].fault})")
        if known:
            lines += [
                f"the same words, as tokens: {len(known) - len(self.otherwise)} of {len(known)}",
                f"as many tokens of the picture: {len(known) - len(self.pictures)} of {len(known)}",
            ]
        else:
            lines.append("tokens: not given by this endpoint (a vLLM gives them: model.engine=vllm)")
        lines.append(
            f"the same answer, up to {TOKENS} tokens: {len(self.rows) - len(self.answers)} of {len(self.rows)}"
        )
        if apart := self.apart:
            bounds = sum(self.there[row].low < self.there[row].high for row in apart)
            of = f", {bounds} of them by bounds" if bounds else ""
            lines.append(
                f"margins within {self.close:g} logits: {len(apart) - len(self.far)} of {len(apart)}{of} (largest "
                f"difference {max(apart.values()):.1e})"
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
    found = there.generate(prompts, max_new_tokens=TOKENS)
    bounds = found.bounds or [(margin, margin) for margin in found.margins.tolist()]
    theirs = []
    for row, prompt in enumerate(prompts):
        status, why = ((column or [""] * len(prompts))[row] for column in (found.statuses, found.reasons))
        fault, tokens = "" if status in ASKED else f"{status}: {why}", None
        if not fault:
            try:
                tokens = there.tokens_of(prompt)
            except Failed as failure:
                fault = failure.reply.reason
        theirs.append(Side(tokens, found.texts[row].strip(), *bounds[row], fault=fault))
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
