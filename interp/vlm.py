"""A vision-language model as this project uses one: prompts in, answers and their Yes/No margins out.

``VLM`` is model + processor + layout and can be built from parts (``VLM(model, processor)``) or with ``load``. Knows nothing
of benchmarks, methods or files (``interp.loading`` finds weights).
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, LogitsProcessor, LogitsProcessorList

from interp.answers import AnswerIds, answer_ids
from interp.errors import UserError
from interp.layout import layout_for
from interp.loading import load
from interp.rendering import render, to_rgb

__all__ = ["VLM", "Generation", "Prompt", "load"]

# What a checkpoint's generation_config may set and a plain greedy answer must not inherit: Qwen2.5-VL ships sampling and a
# repetition penalty, InstructBLIP five beams. Each can be asked for in the call.
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}


@dataclass(frozen=True)
class Prompt:
    """One question. ``key`` is the case's id: whatever is random about the case is drawn from it and a seed alone."""

    text: str
    image: Image.Image | None = None
    system: str | None = None
    key: str = ""


@dataclass
class Generation:
    """The answers to a batch of prompts, a row each.

    ``texts`` are without special tokens and outer whitespace; ``token_ids`` are the generated ids up to and with the end
    token; ``margins`` are logit(Yes) − logit(No) at the first answer token, float32 on the CPU, as the arm sees them;
    ``finished`` says whether the end token came within ``max_new_tokens``.
    """

    texts: list[str]
    token_ids: list[list[int]]
    margins: Float[Tensor, "row"]
    finished: list[bool]


class VLM:
    """Model, processor and layout. ``revision`` is the weights' hub commit or hash, None for a model built in memory.

    Raises:
        UserError: the family has no layout, or the processor's tokenizer no token to pad with.
    """

    def __init__(self, model: Any, processor: Any, *, name: str = "", revision: str | None = None) -> None:
        self.model = model
        self.processor = processor
        self.layout = layout_for(model)
        self.name = name or self.layout.model_type
        self.revision = revision
        tokenizer = processor.tokenizer
        tokenizer.padding_side = "left"  # generate() continues from the last column
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"the tokenizer of {self.name} has no pad, end or unknown token to pad a batch with; "
                "set processor.tokenizer.pad_token"
            )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self.model.dtype

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    @cached_property
    def answer_ids(self) -> AnswerIds:
        """The tokens that begin "Yes" and "No" where an answer begins; see ``interp.answers``."""
        return answer_ids(self.tokenizer, self.render(Prompt("?")), name=self.name)

    def render(self, prompt: Prompt) -> str:
        """The prompt as the model reads it, up to where its answer begins; the image is still one placeholder."""
        return render(self.processor, prompt, layout=self.layout, name=self.name)

    def encode(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """Left-padded model inputs, on the model's device and with pixels in its dtype.

        Raises:
            UserError: no prompts, prompts with and without an image in one batch, or whatever ``render`` refuses.
        """
        texts = [self.render(prompt) for prompt in prompts]
        images = [[to_rgb(prompt.image)] for prompt in prompts if prompt.image is not None]
        self._check_batch(len(texts), len(images))
        options: dict[str, Any] = {"return_tensors": "pt", "padding": True, "padding_side": "left"}
        begin = self.tokenizer.bos_token
        if begin and texts[0].startswith(begin):
            options["add_special_tokens"] = False  # the template wrote <s> already; two of them shift every position
        batch = self.processor(text=texts, images=images or None, **options)
        return batch.to(self.device, dtype=self.dtype)

    def _check_batch(self, prompts: int, images: int) -> None:
        if not prompts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark's limit")
        if 0 < images < prompts:
            raise UserError(
                f"{images} of {prompts} prompts in one batch have an image; either all or none may; "
                "ask those without an image in a batch of their own"
            )
        pixels = inspect.signature(self.model.generate).parameters.get("pixel_values")
        if not images and pixels is not None and pixels.default is inspect.Parameter.empty:
            raise UserError(
                f"{self.name} cannot answer without an image; give every prompt one, a blank one if need be"
            )

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 16,
        logits_processor: LogitsProcessorList | list[LogitsProcessor] | None = None,
        encoded: BatchFeature | None = None,
        seed: int | None = None,
        **generate_kwargs: Any,
    ) -> Generation:
        """Answers, greedily unless told otherwise in ``generate_kwargs``, whatever the checkpoint's own settings are.

        ``encoded`` are inputs made by ``encode``, perhaps changed since. ``seed`` is needed for ``do_sample=True`` and
        leaves the global generator alone; a sampled answer depends on its batch. Margins come from the raw logits of the
        first step, before any processor.

        Raises:
            UserError: right-padded inputs, several sequences a prompt, or sampling without a seed.
        """
        batch = self.encode(prompts) if encoded is None else encoded
        options = GREEDY | self._special_tokens() | generate_kwargs
        _check_options(batch, options, seed)
        processors = LogitsProcessorList(logits_processor or [])
        with _first_logits(self._speaker) as first, _own_length(self._speaker), _seeded(seed, self.device):
            output = self.model.generate(**batch, **options, max_new_tokens=max_new_tokens, logits_processor=processors)
        sequences = getattr(output, "sequences", output)
        return self._generation(
            sequences[:, _prompt_length(sequences, batch["input_ids"]) :].tolist(), first[0], options
        )

    def score(self, prompts: Sequence[Prompt], *, encoded: BatchFeature | None = None) -> Float[Tensor, "row"]:
        """The margin of each prompt with one forward; float32 on the CPU. Takes inputs padded on either side."""
        batch = dict(self.encode(prompts) if encoded is None else encoded)
        mask = batch["attention_mask"]
        last = mask.shape[-1] - 1 - mask.flip(-1).argmax(-1)
        accepted = inspect.signature(self.model.forward).parameters
        if self.layout.position_kind == "1d" and "position_ids" in accepted:
            # As generate() counts: padding has no place, so that an answer does not depend on its batch.
            batch["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in accepted:
            columns, last = torch.unique(last, return_inverse=True)
            batch["logits_to_keep"] = columns
        with torch.no_grad():
            logits = self.model(**batch).logits
        return self.margin(logits[torch.arange(len(mask), device=logits.device), last.to(logits.device)]).cpu()

    def margin(self, logits: Float[Tensor, "row vocab"]) -> Float[Tensor, "row"]:
        """logit(Yes) − logit(No) in float32; where several tokens begin an answer, their logits are summed as probabilities."""
        yes, no = (logits[:, ids].float().logsumexp(-1) for ids in self.answer_ids)
        return yes - no

    @cached_property
    def _speaker(self) -> Any:
        """The module that holds the output head and runs the decoding loop; InstructBLIP's is not the outermost."""
        return self.model.get_submodule(self.layout.lm_head.rpartition(".")[0])

    def _special_tokens(self) -> dict[str, Any]:
        """The end and padding ids of ``generate``: the checkpoint's, or else the tokenizer's."""
        end = self._speaker.generation_config.eos_token_id
        return {
            "eos_token_id": self.tokenizer.eos_token_id if end is None else end,
            "pad_token_id": self.tokenizer.pad_token_id,
        }

    def _generation(
        self, rows: list[list[int]], logits: Float[Tensor, "row vocab"], options: dict[str, Any]
    ) -> Generation:
        end = options["eos_token_id"]
        ends = {end} if isinstance(end, int) else set(end or ())
        rows = [_until_end(row, ends, options["pad_token_id"]) for row in rows]
        return Generation(
            texts=[text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)],
            token_ids=rows,
            margins=self.margin(logits).cpu(),
            finished=[bool(row) and row[-1] in ends for row in rows],
        )


def _check_options(batch: Any, options: dict[str, Any], seed: int | None) -> None:
    if not bool(batch["attention_mask"][:, -1].all()):
        raise UserError(
            "these inputs are padded on the right; generate() continues from the last column; use vlm.encode"
        )
    for name in ("num_beams", "num_return_sequences"):
        if (options.get(name) or 1) != 1:
            raise UserError(f"{name}={options[name]}; one sequence a prompt is followed here; leave {name} out")
    if options["do_sample"] and seed is None:
        raise UserError("do_sample=True without a seed; a sampled answer must be repeatable; pass seed=<int>")


def _prompt_length(sequences: Int[Tensor, "row all"], input_ids: Int[Tensor, "row prompt"]) -> int:
    """How many columns of ``sequences`` repeat the prompt: some families' generate() returns the new tokens alone."""
    length = input_ids.shape[1]
    return length if torch.equal(sequences[:, :length], input_ids) else 0


def _until_end(row: list[int], ends: set[int], pad: int) -> list[int]:
    for i, token in enumerate(row):
        if token in ends:
            return row[: i + 1]
    while row and row[-1] == pad:  # a row that another criterion stopped
        row = row[:-1]
    return row


@contextmanager
def _first_logits(speaker: Any) -> Iterator[list[Float[Tensor, "row vocab"]]]:
    """Collects the logits of the first forward's last column: before processors, and without keeping every step's."""
    kept: list[Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        if not kept:
            kept.append(output.logits[:, -1].detach().to(dtype=torch.float32, copy=True))

    handle = speaker.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


@contextmanager
def _own_length(speaker: Any) -> Iterator[None]:
    """Hides the checkpoint's max_length, of which generate() warns when a call says max_new_tokens."""
    config = speaker.generation_config
    length, config.max_length = config.max_length, None
    try:
        yield
    finally:
        config.max_length = length


@contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """The global generators set to ``seed`` for a while; torch.multinomial inside generate() takes no other."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
