"""The Yes/No margin of an answer: the first tokens of Yes and No, and the scores that the first token was chosen from.

``VLM.generate`` reads it after all logits processors, so a method has nothing to do for it. A logits processor may
declare, as an attribute or a property:

``first_scores``
    Its scores of the first step before it masked tokens, [row vocab], or one row for every pair of a paired batch. A
    cutoff must declare them: a masked answer has no logit, so without them the margin is missing (NaN).
``unscored``
    Why its scores hold no margin; "" (the default) if they do. All margins are then missing.
``shifts_margin``
    True if all that it does is add a constant to the margin. ``Generation.unshifted`` is then the margin without it.
``sampled``
    True if it draws the token. The margin is read before it (or from its ``first_scores``), as it is before the
    samplers of transformers (``TemperatureLogitsWarper`` and all others of that name).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from interp.errors import UserError

YES, NO = "Yes", "No"
# Options of generate() that choose tokens from scores which no processor of ours sees.
UNSEEN = ("assistant_model", "assistant_early_exit", "watermarking_config", "custom_generate")

Metric = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, " row"]]
"""What a tool measures: one number a prompt, from the logits of its first answer token. ``VLM.margin`` is one."""


class AnswerIds(NamedTuple):
    """First tokens of the two answers, usually one or two each; no token is in both."""

    yes: list[int]
    no: list[int]


def answer_ids(
    tokenizer: Any, rendered: str, *, name: str = "this model", words: tuple[str, str] = (YES, NO)
) -> AnswerIds:
    """The first tokens of "Yes" and " Yes" ("No" and " No") as continuations of ``rendered``, a prompt without answer.

    ``words`` are asked for in place of these two.

    SentencePiece and byte-level BPE have two tokens for the two spellings, a word-level tokenizer one. A spelling that
    changes the prompt's last token is not a continuation and is dropped. After a prompt that ends in a space (``: `` +
    ``Yes`` is ``:`` + ``▁Yes``) the spellings that continue it without that space count too. A first token that both
    answers share (a lone ``▁``) is dropped.

    Raises:
        UserError: no first token distinguishes Yes from No.
    """
    yes, no = (_first_tokens(tokenizer, rendered, (word, f" {word}")) for word in words)
    found = AnswerIds([i for i in yes if i not in no], [i for i in no if i not in yes])
    if not (found.yes and found.no):
        raise UserError(
            f"the tokenizer of {name} has no first token that tells {words[0]} from {words[1]} ({words[0]}: {yes}, "
            f"{words[1]}: {no}); margins need one; choose a checkpoint whose vocabulary holds both words"
        )
    return found


def _first_tokens(tokenizer: Any, rendered: str, spellings: tuple[str, ...]) -> list[int]:
    found = []
    for prompt in (rendered, rendered.rstrip(" ")):
        before = _encode(tokenizer, prompt)
        for spelling in spellings:
            after = _encode(tokenizer, prompt + spelling)
            answer = after[len(before) :]
            if after[: len(before)] == before and answer and tokenizer.unk_token_id not in answer:
                found.append(answer[0])
    return list(dict.fromkeys(found))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def margin_of(yes: Float[Tensor, "row yes"], no: Float[Tensor, "row no"]) -> Float[Tensor, " row"]:
    """logsumexp(yes) − logsumexp(no) in float32, over the scores of the answers' first tokens."""
    return yes.float().logsumexp(-1) - no.float().logsumexp(-1)


class FirstScores:
    """Follows one call of ``generate`` with the logits processors ``own``; pass it ``processors`` in their place.

    ``answers`` are the first tokens of Yes and of No, ``options`` the other options of the call. Reading the margins is
    for afterwards: only then has a processor that checks its calls seen the last one.
    """

    def __init__(
        self, own: Sequence[LogitsProcessor], answers: tuple[Sequence[int], Sequence[int]], options: Mapping[str, Any]
    ) -> None:
        own = list(own)
        chosen = len(own)  # behind these the token is only drawn
        while chosen and _draws(own[chosen - 1]):
            chosen -= 1
        moved = chosen  # behind these the margin is only shifted
        while moved and getattr(own[moved - 1], "shifts_margin", False):
            moved -= 1
        self._yes = len(answers[0])
        tokens = [token for ids in answers for token in ids]
        self._plain = _Tap(tokens, own[:moved])
        self._final = _Tap(tokens, own[:chosen]) if chosen > moved else self._plain
        self._models = _Tap(tokens, []) if moved else self._plain
        first = [] if self._models is self._plain else [self._models]
        taps = [self._plain] if self._final is self._plain else [self._plain, *own[moved:chosen], self._final]
        self.processors = LogitsProcessorList([*first, *own[:moved], *taps, *own[chosen:]])
        self._seen = not any(options.get(name) for name in UNSEEN)
        self.sampled = bool(options.get("do_sample")) or any(getattr(one, "sampled", False) for one in own)

    @property
    def ran(self) -> bool:
        """Whether generate() has called the processors."""
        return self._plain.called

    def check_model(self, name: str, dtype: object) -> None:
        """Checks that the model's own scores, before any processor, are numbers; options of the call may mask with −∞.

        Raises:
            UserError: they are not.
        """
        scores = self._models.read()
        if scores is None or not bool((scores.isnan() | scores.isposinf()).any()):
            return
        kind = "NaN" if bool(scores.isnan().any()) else "infinite"
        raise UserError(
            f"the scores of {name} itself are not finite ({kind}) in {str(dtype).removeprefix('torch.')}, before any "
            "method has changed them; take model.dtype=bfloat16 or model.dtype=float32, or a checkpoint whose weights "
            "are numbers"
        )

    def margins(self, rows: int) -> Float[Tensor, " row"]:
        """The margins of the ``rows`` answers, float32 on the CPU; NaN where there is none."""
        return self._read(self._final, rows)

    def unshifted(self, rows: int) -> Float[Tensor, " row"] | None:
        """The margins before the constants that processors added to them; None if none did."""
        return None if self._plain is self._final else self._read(self._plain, rows)

    def _read(self, tap: "_Tap", rows: int) -> Float[Tensor, " row"]:
        scores = tap.read() if self._seen else None
        if scores is None:
            return torch.full((rows,), torch.nan)
        scores = scores.float().repeat(rows // len(scores), 1)
        margins = margin_of(scores[:, : self._yes], scores[:, self._yes :])
        return margins.where(scores.isfinite().all(1), torch.nan).cpu()


class _Tap(LogitsProcessor):
    """Keeps the scores of ``tokens`` at the first step, after the processors ``before``; changes nothing."""

    def __init__(self, tokens: Sequence[int], before: Sequence[LogitsProcessor]) -> None:
        self._tokens, self._before = list(tokens), before
        self._kept: Tensor | None = None
        self.called = False

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores as they are."""
        self.called = True
        if self._kept is None:
            self._kept = scores[:, self._tokens]  # a copy, because a later processor may write into the scores
        return scores

    def read(self) -> Float[Tensor, "row token"] | None:
        """The tokens' scores, before the last processor's mask; None if they hold no margin."""
        uncut = uncut_scores(self._before)  # in any case: a contrast raises here what it found in the last step
        if any(getattr(processor, "unscored", "") for processor in self._before):
            return None
        return self._kept if uncut is None else uncut[:, self._tokens]


def uncut_scores(processors: Sequence[LogitsProcessor]) -> Float[Tensor, "row vocab"] | None:
    """``first_scores`` of the last of ``processors``, if it declares them.

    Those of an earlier one would lack what came after it.
    """
    return getattr(processors[-1], "first_scores", None) if processors else None


def _draws(processor: LogitsProcessor) -> bool:
    """Whether all that it does is draw."""
    kind = type(processor)
    return getattr(processor, "sampled", kind.__name__.endswith("LogitsWarper")) and not hasattr(kind, "first_scores")
