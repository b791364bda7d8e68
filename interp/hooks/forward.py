"""Follow a model's forwards: the batch and the columns that each processes, in generation and single forwards.

A *pass* is the forward of a batch of prompts with its decoding steps, which are matched by their cache. Recording,
knockout, patching and steering use this to know which tokens a forward holds.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.device_copies import to_host
from interp.errors import UserError
from interp.generation import cache_in
from interp.hooks.attention import STATIC, is_intercepted
from interp.segments import IMAGE, Segments, segment

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM

Hook = TypeVar("Hook", bound=Callable[..., Any])
Made = TypeVar("Made")
_OWN_HOOKS = "transformers.utils.output_capturing"
_PAUSED: ContextVar[bool] = ContextVar("following_paused", default=False)
_FOLLOWERS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # open ``follow`` blocks, by the module they hook


@contextmanager
def paused() -> Iterator[None]:
    """Exempt the forwards inside from recording and steering. For second branches (noised image, no image)."""
    token = _PAUSED.set(True)
    try:
        yield
    finally:
        _PAUSED.reset(token)


def is_paused() -> bool:
    """Return whether the current forward is inside ``paused``."""
    return _PAUSED.get()


def only_listens(hook: Hook) -> Hook:
    """Mark a forward hook that only reads the output, so that it may get one that was computed before."""
    hook.only_listens = True  # type: ignore[attr-defined]
    return hook


def hooked(module: Any, *, but: Collection[str] = ()) -> bool:
    """Return whether anything hangs in the module's forward that may change it, or looks at what it computes.

    Not what transformers leaves there, what ``only_listens``, and hooks of the modules ``but``, by name.
    """
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    passed = (_OWN_HOOKS, *but)
    return any(
        getattr(hook, "__module__", None) not in passed and not getattr(hook, "only_listens", False) for hook in hooks
    )


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object while open."""
    before = owner.__dict__.get(name)  # accelerate may have set a forward on the instance
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not None:
            setattr(owner, name, before)


@dataclass
class Pass:
    """One batch. ``first_row`` counts rows over all passes, ``total`` the columns seen so far.

    Tokens of ``ends`` end an answer. Those fed stay on the device until somebody asks whose answer has ended.
    """

    segments: Segments
    first_row: int
    ends: Set[int]
    total: int = 0
    _alive: list[bool] = field(init=False)
    _fed: list[Int[Tensor, " row"]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._alive = [True] * len(self.segments.rows)

    @property
    def alive(self) -> list[bool]:
        """By row: whether its answer has not ended; False once it was fed its end token, or padding."""
        self.read(to_host(self.unread()))
        return self._alive

    def feed(self, ids: Int[Tensor, "row column"]) -> None:
        """Notes the tokens of a decoding step: one a row, or several where a second branch catches up."""
        self._fed.extend(ids.unbind(1))

    def unread(self) -> list[Tensor]:
        """Return the tokens fed since the last call; the caller fetches them (``to_host``) and passes them to
        ``read``.
        """
        fed, self._fed = self._fed, []
        return [torch.stack(fed)] if fed else []

    def read(self, fetched: Sequence[Int[Tensor, "step row"]]) -> None:
        """See ``unread``."""
        for tokens in (step for steps in fetched for step in steps.tolist()):
            self._alive = [alive and token not in self.ends for alive, token in zip(self._alive, tokens, strict=True)]

    def step(self, column: int) -> int:
        """0 for the last column of the prompts, 1 for the first generated token, −1 for the column before the last."""
        return column - self.segments.width + 1

    def real(self, columns: list[int]) -> Bool[Tensor, "row column"]:
        """False for padding, and for tokens fed to a row whose answer has ended."""
        padding = self.segments.columns_of("padding", self.segments.width)
        width = self.segments.width
        return torch.tensor(
            [[not bool(padding[r, c]) if c < width else alive for c in columns] for r, alive in enumerate(self.alive)]
        )


@dataclass(frozen=True)
class Forward:
    """One forward with queries at the columns ``start`` to ``total``; those from ``new`` on are new.

    ``made`` is for what hooks of one follower work out once a forward.
    """

    batch: Pass
    start: int
    new: int
    total: int
    made: dict[Any, Any] = field(default_factory=dict, compare=False)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what ``make`` gives, made once in this forward."""
        if key not in self.made:
            self.made[key] = make()
        return cast("Made", self.made[key])


class Follower:
    """Follows forwards: the batch and the columns of the forward that runs. ``follow`` opens it.

    Subclasses do their work in ``begin`` and ``end``; hooks deeper in the model ask for the ``current`` forward.
    ``running``, ``start`` (its first column) and ``rows`` are known of a forward even if its batch is not.
    """

    in_pauses = False  # whether it follows forwards inside ``paused`` too

    def __init__(self, vlm: "VLM") -> None:
        self.vlm, self.speaker = vlm, vlm.speaker
        self.batches: list[Segments] = []
        self.running, self.start, self.rows = False, 0, 0
        self._forward: Forward | None = None
        self._refusal: UserError | None = None
        self._rows_before = 0
        self._by_cache: WeakKeyDictionary[Any, Pass] = WeakKeyDictionary()
        self._latest: Pass | None = None
        self._ends = {vlm.processor.tokenizer.pad_token_id, *vlm.end_ids}

    def begin(self, forward: Forward) -> None:
        """Called before a forward of a known batch."""

    def end(self, forward: Forward) -> None:
        """Called after a forward of a known batch."""

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run before a forward. An unknown batch is an error only if somebody asks for it."""
        self._forward = self._refusal = None
        self.running = self.in_pauses or not is_paused()
        if not self.running:
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        embeddings, cache = kwargs.get("inputs_embeds"), cache_in(kwargs)
        tokens: Any = embeddings if ids is None else ids
        self.start = int(cache.get_seq_length()) if cache is not None else 0
        self.rows = len(tokens)
        try:
            self._forward = self._enter(ids, embeddings, cache, self.start)
        except UserError as error:
            # With its frames, which are callers of this one too, it would keep what they hold until it is collected.
            self._refusal = error.with_traceback(None)
        else:
            self.begin(self._forward)

    def after(self, module: Any, args: Any, output: Any) -> None:
        """Run after a forward, and remember the cache that it may have created, to recognise its next steps."""
        forward = self._forward
        self.running, self._forward, self._refusal = False, None, None
        if forward is None:
            return
        cache = cache_in(output)
        if cache is not None:
            self._by_cache[cache] = forward.batch
        self.end(forward)

    def current(self, what: str, *, columns: int | None = None) -> Forward:
        """Return the forward that runs, with ``columns`` queries (default: any number). ``what`` follows it, in errors.

        Raises:
            UserError: its tokens belong to no batch in ``batches``, or do not continue where their pass ended; or no
                forward of the whole model runs.
        """
        if self._refusal is not None:
            raise self._refusal
        forward = self._forward
        if forward is None or columns not in (None, forward.total - forward.start):
            raise UserError(
                f"a decoder layer or its attention ran outside a forward of the whole model; {what} follows "
                "vlm.generate, vlm.score and vlm.model(...); call one of these"
            )
        return forward

    def _enter(self, ids: Any, embeddings: Any, cache: Any, past: int) -> Forward:
        if getattr(cache, "is_compileable", False):
            raise UserError(STATIC)
        tokens: Any = embeddings if ids is None else ids
        shape = tuple(tokens.shape[:2])
        batch = self._pass(ids, embeddings, cache, past, shape)
        if batch.total and ids is not None:
            batch.feed(ids if past else ids[:, batch.total :].clone())
        forward = Forward(batch, start=past, new=batch.total, total=past + shape[1])
        batch.total = forward.total
        if cache is not None:
            self._by_cache[cache] = batch
        return forward

    def _pass(self, ids: Any, embeddings: Any, cache: Any, past: int, shape: tuple[int, ...]) -> Pass:
        batch = self._by_cache.get(cache) if past else None
        if batch is not None and batch.total == past and shape[0] == len(batch.segments.rows):
            return batch
        earlier = [] if past else self.batches[::-1]
        for segments in earlier:
            if shape == tuple(segments.input_ids.shape) and self._same(segments, ids, embeddings):
                return self._first(segments)
        if not past and self._latest is not None and self._repeats(self._latest, ids, shape):
            return self._latest
        for segments in earlier:  # a prompt and the beginning of an answer (``interp.sequence_metric``)
            text = (ids if embeddings is None else embeddings)[:, : segments.width]
            parts = (text, None) if embeddings is None else (None, text)
            if shape[0] == len(segments.rows) and text.shape[1] == segments.width and self._same(segments, *parts):
                return self._first(segments)
        raise UserError(
            f"a forward of {shape[0]} × {shape[1]} tokens after {past} cached ones is of no batch the recorder knows; "
            "it records prompts encoded while it is open; call vlm.encode inside the `with`, pass segments=..., or run "
            "other forwards inside interp.paused()"
        )

    def _first(self, segments: Segments) -> Pass:
        self._latest = Pass(segments, self._rows_before, self._ends)
        self._rows_before += len(segments.rows)
        return self._latest

    def _same(self, segments: Segments, ids: Any, embeddings: Any) -> bool:
        """Return whether these are the tokens of ``segments``; compares text embeddings if there are no ids."""
        if ids is not None:
            return torch.equal(ids.cpu(), segments.input_ids)
        text = ~segments.columns_of(IMAGE, segments.width)
        text_embeddings = self.speaker.get_input_embeddings()(segments.input_ids[text].to(embeddings.device))
        return torch.equal(text_embeddings.to(embeddings.dtype), embeddings[text.to(embeddings.device)])

    @staticmethod
    def _repeats(batch: Pass, ids: Int[Tensor, "row column"] | None, shape: tuple[int, ...]) -> bool:
        """Return whether this is a step without a cache: the whole sequence again, one token longer."""
        if ids is None or shape != (len(batch.segments.rows), batch.total + 1):
            return False
        return torch.equal(ids[:, : batch.segments.width].cpu(), batch.segments.input_ids)


@contextmanager
def follow(follower: Follower, segments: Segments | None) -> Iterator[None]:
    """``follower`` follows every forward of its model while open.

    Segments of prompts that the model encodes inside are found automatically; ``segments`` belong to inputs encoded
    before.
    """
    vlm = follower.vlm
    follower.batches.extend([segments] if segments is not None else [])
    _FOLLOWERS[follower.speaker] = _FOLLOWERS.get(follower.speaker, 0) + 1

    def note(prompts: "Sequence[Prompt]", encoded: Mapping[str, Any]) -> None:
        follower.batches.append(segment(vlm, prompts, encoded))

    handles = []
    vlm.on_encode.append(note)
    try:
        handles.append(follower.speaker.register_forward_pre_hook(follower.before, with_kwargs=True))
        handles.append(follower.speaker.register_forward_hook(follower.after))
        yield
    finally:
        for handle in handles:
            handle.remove()
        vlm.on_encode.remove(note)
        _FOLLOWERS[follower.speaker] -= 1


def is_followed(vlm: "VLM") -> bool:
    """Return whether forwards of ``vlm`` are being recorded or edited: attention, its edges, or hidden states."""
    return bool(_FOLLOWERS.get(vlm.speaker)) or is_intercepted(vlm.model)
