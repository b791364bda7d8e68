"""Helpers around one call of ``generate()``: greedy settings, the KV cache's name, the generated ids, the answers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers.generation import utils

from interp.errors import UserError
from interp.families import PER_TOKEN

if TYPE_CHECKING:
    from interp.prompt import Prompt

# Checkpoints' settings are hidden (``special_tokens_alone``): Qwen2.5-VL ships sampling and a repetition penalty,
# InstructBLIP five beams. These are said in every call all the same, for models with a generate of their own.
GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
NAMES = ("cache", "past_key_values")  # of the KV cache in a forward: from transformers 5.24 on, and before
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclass
class Generation:
    """The answers to a batch of prompts, one row each.

    ``texts`` have no special tokens and no surrounding whitespace; of a model that thinks first they are its answers,
    ``thoughts`` what stands before them (``interp.thoughts``; "" where nothing does) and ``thought_tokens`` how many.
    ``token_ids`` are the generated ids, end token included. ``margins`` are logit(Yes) − logit(No) at the verdict,
    float32 on the CPU, read from the scores that it was chosen from (``interp.margin``; NaN if there are none).
    ``verdict_steps`` are the numbers of tokens before the verdicts (None: there is none); None if every verdict is the
    first token. ``finished`` is whether the end token came
    within ``max_new_tokens``. ``unshifted`` are the margins before a method added a constant to them; None if none did.
    ``sampled`` is whether the tokens were drawn, so that a verdict need not have the sign of its margin.
    ``branch`` is how a method ran a second picture (``mitigation.vcd.VCD``), "" if it did not. ``branch_margins`` are
    each answer's margins by the name of the branch (``mitigation.branches``), before its method's formula. ``steps``
    are each answer's texts by name from the questions that a method asked before it
    (``mitigation.steps``). ``bounds`` are the lowest and highest value of each margin where replies give it (equal
    where it is exact); None where all are. ``statuses`` and ``reasons`` describe
    the outcome of each request to an API. ``prompts`` are the rendered prompts, ``keys`` their ``Prompt.key``.
    """

    texts: list[str]
    token_ids: list[list[int]]
    margins: Float[Tensor, " row"]
    finished: list[bool]
    statuses: list[str] | None = None
    reasons: list[str] | None = None
    prompts: list[str] | None = None
    unshifted: Float[Tensor, " row"] | None = None
    sampled: bool = False
    keys: list[str] | None = None
    branch: str = ""
    branch_margins: list[dict[str, float]] | None = None
    steps: list[dict[str, str]] | None = None
    bounds: list[tuple[float, float]] | None = None
    thoughts: list[str] | None = None
    thought_tokens: list[int] | None = None
    verdict_steps: list[int | None] | None = None

    @property
    def scored(self) -> Bool[Tensor, " row"]:
        """Whether an answer has a verdict to read a margin at: a thought that was cut off has none."""
        return torch.tensor([step is not None for step in self.verdict_steps or [0] * len(self.texts)])

    def to_verdicts(self, prompts: "Sequence[Prompt]") -> "list[Prompt]":
        """Return the ``prompts`` with the tokens before their verdicts: a verdict is then the next token.

        Raises:
            UserError: a thought was cut off, and no verdict came.
        """
        if self.verdict_steps is None:
            return list(prompts)
        if cut := self.verdict_steps.count(None):
            most = max(len(ids) for ids in self.token_ids)
            raise UserError(
                f"{cut} of {len(prompts)} thoughts were cut off after {most} tokens, and what looks at a verdict has "
                "none to look at; set max_new_tokens higher"
            )
        return [
            replace(prompt, answer_prefix=(*prompt.answer_prefix, *ids[:step]))
            for prompt, step, ids in zip(prompts, self.verdict_steps, self.token_ids, strict=True)
        ]

    def take(self, rows: Sequence[int]) -> "Generation":
        """Return the answers of these rows, in this order."""
        used: dict[str, Any] = {
            name: value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]
            for name, value in vars(self).items()
            if isinstance(value, list | Tensor)
        }
        return replace(self, **used)

    def with_rows(self, rows: Sequence[int], others: "Generation") -> "Generation":
        """Return these answers, with ``others`` in the rows ``rows``; what either lacks stays as it is."""
        changed: dict[str, Any] = {}
        for name, current in vars(self).items():
            other = getattr(others, name)
            if name != "steps" and isinstance(current, list | Tensor) and other is not None:
                changed[name] = list(current) if isinstance(current, list) else current.clone()
                for row, value in zip(rows, other, strict=True):
                    changed[name][row] = value
        return replace(self, **changed)


def check_call(options: dict[str, Any], attention_mask: Int[Tensor, "row column"], seed: int | None) -> None:
    """Reject calls that would silently give wrong answers.

    Raises:
        UserError: right padding, several sequences per prompt, or sampling without a seed.
    """
    if not bool(attention_mask[:, -1].all()):
        raise UserError(
            "these inputs are padded on the right; generate() continues from the last column; use vlm.encode"
        )
    for name in ("num_beams", "num_return_sequences"):
        if (options.get(name) or 1) != 1:
            raise UserError(f"{name}={options[name]}; one sequence a prompt is followed here; leave {name} out")
    if options["do_sample"] and seed is None:
        raise UserError("do_sample=True without a seed; a sampled answer must be repeatable; pass seed=<int>")


def new_tokens(
    sequences: Int[Tensor, "row all"], input_ids: Int[Tensor, "row prompt"], *, ends: set[int], pad: int
) -> list[list[int]]:
    """Return the generated ids of each row, up to and including the first end token.

    In some families ``sequences`` starts with the prompt, in others it holds only the new tokens.
    """
    length = input_ids.shape[1]
    repeated = torch.equal(sequences[:, :length].cpu(), input_ids.cpu())
    return [_until_end(row, ends, pad) for row in sequences[:, length if repeated else 0 :].tolist()]


def _until_end(row: list[int], ends: set[int], pad: int) -> list[int]:
    for i, token in enumerate(row):
        if token in ends:
            return row[: i + 1]
    while row and row[-1] == pad:  # another stopping criterion ended this row early
        row = row[:-1]
    return row


@contextmanager
def special_tokens_alone(*speakers: Any) -> Iterator[None]:
    """Hide the checkpoint's generation settings but for its special tokens.

    Suppressed tokens, minimum lengths, guidance, biases, stop strings and other settings of a checkpoint's
    ``generation_config.json`` would act in every call. ``speakers`` are modules with a ``generation_config``.
    """
    before = [speaker.generation_config for speaker in speakers]
    for speaker, config in zip(speakers, before, strict=True):
        saved = {name: getattr(config, name, None) for name in SPECIAL_TOKENS}
        speaker.generation_config = GenerationConfig(**saved)
    try:
        yield
    finally:
        for speaker, config in zip(speakers, before, strict=True):
            speaker.generation_config = config


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seeds the global generators, the only ones that generate() draws from, and restores them afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def appended(
    batch: Mapping[str, Any], tails: Sequence[Sequence[int]], *, pad: int, side: Literal["left", "right"], kind: int = 0
) -> dict[str, Any]:
    """Return the batch with each row's tokens appended to its prompt, padded again on ``side``.

    ``kind`` is the type of the new tokens if the family has ``token_type_ids``.
    """
    mask, grown = batch["attention_mask"].bool(), dict(batch)
    added = {"attention_mask": 1, "token_type_ids": kind, "mm_token_type_ids": 0}
    for name in ({"input_ids"} | added.keys() | PER_TOKEN) & batch.keys():
        rows = []
        for row, real, tail in zip(batch[name], mask, tails, strict=True):
            if name in PER_TOKEN:  # new tokens get the cross-attention mask of the prompt's last one
                new = row[-1:].expand(len(tail), *row.shape[1:])
            else:
                new = row.new_tensor(list(tail) if name == "input_ids" else [added[name]] * len(tail))
            rows.append(torch.cat([row[real], new]))
        fill = pad if name == "input_ids" else 0
        grown[name] = pad_sequence(rows, batch_first=True, padding_value=fill, padding_side=side)
    return grown


def cache_in(values: Any) -> Any:
    """Return the KV cache among a forward's arguments (a mapping) or in its output (an object); None where there is
    none.
    """
    # Its items, since a transformers output that is asked for the old name warns on the terminal.
    given = dict(values.items()) if isinstance(values, Mapping) else None
    for name in NAMES:
        cache = getattr(values, name, None) if given is None else given.get(name)
        if cache is not None:
            return cache
    return None


def with_cache(cache: Any) -> dict[str, Any]:
    """Return the cache as an argument of a forward, by the name that the installed transformers has for it."""
    renamed = "cache" in getattr(utils, "ALL_CACHE_NAMES", ())
    return {NAMES[0] if renamed else NAMES[1]: cache}


def pixel_inputs(inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that hold pixels: floating-point tensors that are no mask."""
    floats = (name for name, value in inputs.items() if getattr(value, "is_floating_point", bool)())
    return sorted(name for name in floats if not name.endswith("mask"))
