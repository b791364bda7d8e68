"""Follows a model's forward passes: which columns of which batch each one holds, while generating or running once.

A *pass* is one batch on its way through the model: the forward of its prompts and the decoding steps after it, matched
by their cache. Recording, knockout, patching and steering all use this to know which tokens they are looking at.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import UserError
from interp.hooks.attention import STATIC
from interp.segments import IMAGE, SEGMENTS, Segments, segment

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

_PAUSED: ContextVar[bool] = ContextVar("following_paused", default=False)


@contextmanager
def paused() -> Iterator[None]:
    """Forwards inside are not recorded or steered: for a second branch (noised image, no image) beside the answer's."""
    token = _PAUSED.set(True)
    try:
        yield
    finally:
        _PAUSED.reset(token)


def is_paused() -> bool:
    """Whether the current forward is inside ``paused``."""
    return _PAUSED.get()


@dataclass
class Pass:
    """A batch; ``first_row`` counts rows over all passes, ``total`` the columns seen so far."""

    segments: Segments
    first_row: int
    alive: list[bool]  # whose answer has not ended
    total: int = 0

    def step(self, column: int) -> int:
        """0 at the last column of the prompts, 1 at the first generated token, −1 before the last of the prompt."""
        return column - self.segments.width + 1

    def real(self, columns: list[int]) -> Bool[Tensor, "row column"]:
        """False for queries that mean nothing: padding, and tokens fed to a row whose answer has ended."""
        padding = self.segments.codes == SEGMENTS.index("padding")
        width = self.segments.width
        return torch.tensor(
            [[not bool(padding[r, c]) if c < width else alive for c in columns] for r, alive in enumerate(self.alive)]
        )


@dataclass(frozen=True)
class Forward:
    """One forward: queries of the columns ``start`` to ``total``, those from ``new`` on for the first time."""

    batch: Pass
    start: int
    new: int
    total: int


class Follower:
    """Told of every forward's inputs (``enter``) and outputs (``leave``), says which columns it holds."""

    def __init__(self, vlm: "VLM") -> None:
        self.speaker = vlm.speaker
        self.known: list[Segments] = []
        self.rows = 0
        self._by_cache: WeakKeyDictionary[Any, Pass] = WeakKeyDictionary()
        self._latest: Pass | None = None
        ends = self.speaker.generation_config.eos_token_id
        ends = vlm.processor.tokenizer.eos_token_id if ends is None else ends
        self._ends = {vlm.processor.tokenizer.pad_token_id, *([ends] if isinstance(ends, int) else ends or [])}

    def enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Forward:
        """The forward that begins with these arguments.

        Raises:
            UserError: its tokens are of no batch in ``known``, or do not go on where their pass ended.
        """
        ids = kwargs.get("input_ids", args[0] if args else None)
        embeddings = kwargs.get("inputs_embeds")
        cache = kwargs.get("past_key_values")
        if getattr(cache, "is_compileable", False):
            raise UserError(STATIC)
        past = int(cache.get_seq_length()) if cache is not None else 0
        tokens: Any = embeddings if ids is None else ids
        shape = tuple(tokens.shape[:2])
        batch = self._pass(ids, embeddings, cache, past, shape)
        if batch.total and ids is not None:
            # A row that is fed its end token (or padding) is past its answer.
            fed = zip(batch.alive, ids[:, -1].tolist(), strict=True)
            batch.alive = [alive and token not in self._ends for alive, token in fed]
        forward = Forward(batch, start=past, new=batch.total, total=past + shape[1])
        batch.total = forward.total
        if cache is not None:
            self._by_cache[cache] = batch
        return forward

    def leave(self, forward: Forward, output: Any) -> None:
        """A model called without a cache may have made one, by which its next steps are known."""
        cache = getattr(output, "past_key_values", None)
        if cache is not None:
            self._by_cache[cache] = forward.batch

    def _pass(self, ids: Any, embeddings: Any, cache: Any, past: int, shape: tuple[int, ...]) -> Pass:
        batch = self._by_cache.get(cache) if past else None
        if batch is not None and batch.total == past and shape == (len(batch.alive), 1):
            return batch
        for segments in reversed(self.known) if not past else ():
            if shape == tuple(segments.input_ids.shape) and self._same(segments, ids, embeddings):
                self._latest = Pass(segments, self.rows, alive=[True] * len(segments.rows))
                self.rows += len(segments.rows)
                return self._latest
        if not past and self._latest is not None and self._repeats(self._latest, ids, shape):
            return self._latest
        raise UserError(
            f"a forward of {shape[0]} × {shape[1]} tokens after {past} cached ones is of no batch the recorder knows; "
            "it records prompts encoded while it is open; call vlm.encode inside the `with`, pass segments=..., or run "
            "other forwards inside interp.paused()"
        )

    def _same(self, segments: Segments, ids: Any, embeddings: Any) -> bool:
        """Whether these are the tokens of ``segments``; where only embeddings come, by those of the text tokens."""
        if ids is not None:
            return torch.equal(ids.cpu(), segments.input_ids)
        text = segments.codes != SEGMENTS.index(IMAGE)
        own = self.speaker.get_input_embeddings()(segments.input_ids[text].to(embeddings.device))
        return torch.equal(own.to(embeddings.dtype), embeddings[text.to(embeddings.device)])

    @staticmethod
    def _repeats(batch: Pass, ids: Int[Tensor, "row column"] | None, shape: tuple[int, ...]) -> bool:
        """Decoding without a cache: the whole sequence again, one token longer."""
        if ids is None or shape != (len(batch.alive), batch.total + 1):
            return False
        return torch.equal(ids[:, : batch.segments.width].cpu(), batch.segments.input_ids)


@runtime_checkable
class ForwardHooks(Protocol):
    """Functions to call around each forward of the model, and the follower that tells them which columns it holds."""

    follower: Follower

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def after(self, module: Any, args: Any, output: Any) -> None: ...


@contextmanager
def follow(vlm: "VLM", hooks: ForwardHooks, segments: Segments | None) -> Iterator[None]:
    """Calls ``hooks`` around every forward while open.

    The segments of what ``vlm`` encodes meanwhile are noted; ``segments`` are of inputs encoded before.
    """
    follower = hooks.follower
    follower.known.extend([segments] if segments is not None else [])

    def note(prompts: "Sequence[Prompt]", encoded: Mapping[str, Any]) -> None:
        follower.known.append(segment(vlm, prompts, encoded))

    handles = []
    vlm.on_encode.append(note)
    try:
        handles.append(follower.speaker.register_forward_pre_hook(hooks.before, with_kwargs=True))
        handles.append(follower.speaker.register_forward_hook(hooks.after))
        yield
    finally:
        for handle in handles:
            handle.remove()
        vlm.on_encode.remove(note)
