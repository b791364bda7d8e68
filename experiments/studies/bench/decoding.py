"""One batch decoded plainly and contrasted in three ways: each generation's prefill, time a token and tokens.

And whole answers of the bundled organism, asked one case at a time: a decoded token of random weights cannot show what
a branch saves that is left out where the choice is certain.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from experiments.studies.bench.eval import EvalCases
from experiments.studies.bench.harness import Setting, Turns, no_memory, synchronise, timed
from experiments.studies.bench.models import DECODING_SIZES, configured, llava, model_of, prompt_of
from interp.cache_names import cache_in, with_cache
from interp.checkpoints.word_level import SPECIAL
from interp.errors import UserError
from interp.output_head import float32_head
from interp.prompt import Prompt
from interp.vlm import VLM
from mitigation.contrastive.corruption import diffuse_images
from mitigation.contrastive.paired import generate_paired
from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
from mitigation.method import Baseline
from mitigation.vcd import VCD

ALPHA, BETA, NOISE_STEP = 1.0, 0.1, 500


class GenerationReading(NamedTuple):
    """One generation. ``prefill`` are seconds to its first token, ``token`` the median of those between two tokens."""

    prefill: float
    token: float
    tokens: list[list[int]]

    @property
    def answer(self) -> float:
        """Seconds of the whole answer."""
        return self.prefill + self.token * (len(self.tokens[0]) - 1)


class TokenTimes(BaseStreamer):
    """The time of each token; on a GPU the copy that ``generate`` makes for a streamer waits for the token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to flush."""


class Batch(NamedTuple):
    """Equal prompts about equal pictures, encoded, and the same with diffused pictures."""

    clean: Mapping[str, Any]
    noised: Mapping[str, Any]


_UNPADDED = ("input_ids", "attention_mask")  # the tokens are fed by themselves, and no prompt is padded
Sequences = Int[Tensor, "row position"]
Decode = Callable[[Any, Batch, TokenTimes, int], Sequences]  # prompts with their answers


def _options(stamps: TokenTimes, new_tokens: int) -> dict[str, Any]:
    # No token ends an answer: every generation has as many steps as the others.
    return {"max_new_tokens": new_tokens, "streamer": stamps, "eos_token_id": None, "pad_token_id": 0}


def _plain(model: Any, batch: Batch, stamps: TokenTimes, new_tokens: int, **processors: Any) -> Sequences:
    return model.generate(**batch.clean, do_sample=False, **_options(stamps, new_tokens), **processors)


def _answers(model: Any, batch: Batch, *given: Any) -> Sequences:
    """Plain, with two tokens' logits in float32, as ``VLM.generate`` does for margins."""
    with float32_head(model, [len(SPECIAL), len(SPECIAL) + 1]):
        return _plain(model, batch, *given)


def _whole(model: Any, batch: Batch, *given: Any, **processors: Any) -> Sequences:
    """Plain, with all logits in float32, as contrasts have them."""
    with float32_head(model):
        return _plain(model, batch, *given, **processors)


def _sequential(model: Any, batch: Batch, *given: Any) -> Sequences:
    vcd = VisualContrastiveLogitsProcessor(model, batch.noised, alpha=ALPHA, beta=BETA)
    return _whole(model, batch, *given, logits_processor=[vcd])


def _paired(model: Any, batch: Batch, stamps: TokenTimes, new_tokens: int) -> Sequences:
    options = _options(stamps, new_tokens)
    return generate_paired(model, batch.clean, batch.noised, alpha=ALPHA, beta=BETA, **options).sequences


@torch.no_grad()
def _two_forward(model: Any, batch: Batch, stamps: TokenTimes, new_tokens: int) -> Sequences:
    """The published loop, a forward of either branch a token, without what ``generate`` does around it.

    Each branch has a cache (the published code's shared one is a bug). Prompts are of equal length, so that it needs
    neither masks nor positions: as fast as such a loop can be.
    """
    ids = batch.clean["input_ids"]
    stamps.put(ids.cpu())
    branches = [{name: given for name, given in inputs.items() if name not in _UNPADDED} for inputs in batch]
    fed = ids
    for _ in range(new_tokens):
        logits = []
        for branch in branches:
            output = model(input_ids=fed, use_cache=True, logits_to_keep=1, **branch)
            branch.clear()
            branch |= with_cache(cache_in(output))
            logits.append(output.logits[:, -1].float())
        fed = _choice(*logits)
        ids = torch.cat([ids, fed], dim=1)
        stamps.put(fed.cpu())
    return ids


def _choice(clean: Float[Tensor, "row vocab"], noised: Float[Tensor, "row vocab"]) -> Int[Tensor, "row 1"]:
    cutoff = torch.log(torch.tensor(BETA)) + clean.max(dim=-1, keepdim=True).values
    contrasted = (1 + ALPHA) * clean - ALPHA * noised
    return contrasted.masked_fill(clean < cutoff, -float("inf")).argmax(dim=-1, keepdim=True)


VARIANTS: dict[str, Decode] = {
    "plain": _plain,
    "answers": _answers,
    "whole": _whole,
    "two_forward": _two_forward,
    "sequential": _sequential,
    "paired": _paired,
}


class DecodingRunner:
    """A model with random weights in this process, and batches for it; a case is a batch's number of prompts."""

    variants = tuple(VARIANTS)

    def __init__(self, setting: Setting) -> None:
        self.size, self.device = DECODING_SIZES[setting.size], torch.device(setting.device)
        self.vlm = setting.build(llava(self.size.shape) if self.size.shape else configured(setting.size))
        self.seed = setting.seed
        self._batches: dict[int, Batch] = {}
        for variant in VARIANTS:  # one-time allocations and first times belong to no variant
            self.once(variant, 1)

    def read(self, variant: str, items: int, *, new_tokens: int | None = None) -> GenerationReading:
        """Decodes a batch of ``items`` prompts."""
        self.prepare(items)
        batch, stamps = self._batches[items], TokenTimes()
        synchronise(self.device)
        start = time.perf_counter()
        try:
            found = VARIANTS[variant](self.vlm.model, batch, stamps, new_tokens or self.size.new_tokens)
        except torch.OutOfMemoryError as error:
            raise UserError(no_memory(variant, items)) from error
        between = [later - earlier for earlier, later in pairwise(stamps.times[1:])]
        answers = found[:, batch.clean["input_ids"].shape[1] :]
        return GenerationReading(stamps.times[1] - start, median(between), answers.tolist())

    def once(self, variant: str, case: int) -> None:
        """Decodes as far as the peak of memory."""
        self.read(variant, case, new_tokens=3)

    def prepare(self, case: int) -> None:
        """Makes the inputs, where they are not there yet."""
        if case not in self._batches:
            prompt = prompt_of(self.vlm, self.size.prompt_tokens, seed=self.seed)
            self._batches[case] = _encoded(self.vlm, [prompt] * case, [str(i) for i in range(case)], self.seed)


def _encoded(vlm: VLM, prompts: list[Prompt], keys: list[str], seed: int) -> Batch:
    clean = vlm.encode(prompts)
    return Batch({**clean}, diffuse_images(clean, keys, step=NOISE_STEP, seed=seed, model=vlm.model))


LIMITS = (1, 24)  # tokens at most: a verdict, and all that the organism says
METHODS: dict[str, Any] = {
    "plain": Baseline(),
    "paired": VCD(branch="paired"),
    "sequential": VCD(branch="sequential"),
}
LOOP = "two_forward"


def answer_costs(cases: int, *, device: str, seed: int, rounds: int = 5) -> list[dict[str, float]]:
    """A row for each of ``LIMITS``: times over plain answering, medians of rounds of ``cases`` cases of IconWorld.

    ``tokens`` is the mean length. Prompt, picture and noise are part of the time.
    """
    loaded = EvalCases(cases).load()
    vlm = model_of("tiny", [], device=device, seed=seed)
    prompts = [Prompt(one.prompt, one.image.render(), key=one.id) for one in loaded.samples]  # type: ignore[union-attr]
    return [_answer_row(vlm, prompts, limit, rounds) for limit in LIMITS]


def _answer_row(vlm: VLM, prompts: list[Prompt], limit: int, rounds: int) -> dict[str, float]:
    lengths: dict[str, list[int]] = {}

    def ask(name: str) -> None:
        each = [METHODS[name].generate(vlm, [prompt], max_new_tokens=limit) for prompt in prompts]
        lengths[name] = [len(answer.token_ids[0]) for answer in each]

    def loop() -> None:
        for prompt, length in zip(prompts, lengths["sequential"], strict=True):
            _looped(vlm, prompt, length)

    work: dict[str, Callable[[], None]] = {name: partial(ask, name) for name in METHODS}
    work[LOOP] = loop
    for warm in work.values():
        warm()
    turns = Turns({name: timed(one, vlm.device) for name, one in work.items()})
    for _ in range(rounds):
        turns.run()
    each = 1000 * turns.median("plain") / len(prompts)
    ratios = turns.ratios(f"{name}_over_plain" for name in work if name != "plain")
    return {"limit": limit, "tokens": sum(lengths["sequential"]) / len(prompts), **ratios, "plain_ms": each}


def _looped(vlm: VLM, prompt: Prompt, tokens: int) -> str:
    """An answer of ``tokens`` tokens by the published loop, from the same picture and noise."""
    batch = _encoded(vlm, [prompt], [prompt.key], seed=0)
    ids = VARIANTS[LOOP](vlm.model, batch, TokenTimes(), tokens)
    return str(vlm.tokenizer.decode(ids[0, batch.clean["input_ids"].shape[1] :], skip_special_tokens=True))
