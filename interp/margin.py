"""The Yes/No margin of an answer: the first tokens of Yes and No, and the scores that the verdict was chosen from.

The verdict is the answer's first token. If a model thinks first, it is the token after the thought that says Yes or No
(``verdict_position``). ``VLM.generate`` reads the margin after all logits processors, so a method has nothing to do for
it. A logits processor may declare, as an attribute or a property:

``uncut_scores``
    Its scores of the latest step before it masked tokens, [row vocab]; None if it has none. A cutoff must declare them:
    a masked answer has no logit, so the margin is missing (NaN) without them.
``unscored``
    Why its scores hold no margin; "" (the default) if they do. All margins are then missing.
``shifts_margin``
    True if all that it does is add a constant to the margin. ``Generation.unshifted`` is then the margin without it.
``sampled``
    True if it draws the token. The margin is read before it (or from its ``uncut_scores``), as it is before the
    samplers of transformers (``TemperatureLogitsWarper`` and all others of that name).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from interp.errors import UserError

YES, NO = "Yes", "No"

Metric = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, " row"]]
"""What a tool measures: one number a prompt, from the logits of its first answer token. ``VLM.margin`` is one."""


def unread(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
    """Return a number that nobody reads: the metric of a forward that is run for its hooks."""
    return logits[:, 0]


class AnswerIds(NamedTuple):
    """First tokens of the two answers, usually one or two each; no token is in both."""

    yes: list[int]
    no: list[int]


_CLOSING = re.compile(r"[\W_]*(?:yes|no)(?:</\w+>|<\|end_of_box\|>|[\W_])*", re.IGNORECASE)
_OPENING = re.compile(r"[\W_]*(?:yes|no)(?![^\W_])", re.IGNORECASE)
_BEFORE = re.compile(  # **, <answer>, \boxed{
    r"[\W_]*(?:(?:answer|boxed|text|begin_of_box)[\W_]*)*", re.IGNORECASE
)


def verdict_position(tokenizer: Any, ids: Sequence[int], answers: AnswerIds, *, opening: bool = False) -> int | None:
    """Return the index in the generated ``ids`` of the token that says Yes or No, or None without a verdict.

    By the evaluation's rules for verdicts: the last such token if no word follows it, else the first one of an answer
    that begins with its verdict; with ``opening`` the latter before the former. Markup may stand around it.
    """

    def text(batch: Sequence[int]) -> str:
        return str(tokenizer.decode(list(batch), skip_special_tokens=True))

    either = {token for spellings in answers for token in spellings}
    sentence = [place for place, token in enumerate(ids) if token in either]
    if not sentence:
        return None
    begins = bool(_BEFORE.fullmatch(text(ids[: sentence[0]])) and _OPENING.match(text(ids[sentence[0] :])))
    ends = bool(_CLOSING.fullmatch(text(ids[sentence[-1] :])))
    if begins and (opening or not ends):
        return sentence[0]
    return sentence[-1] if ends else None


def answer_ids(
    tokenizer: Any, rendered: str, *, name: str = "this model", words: tuple[str, str] = (YES, NO)
) -> AnswerIds:
    """Return the first tokens of "Yes" and " Yes" ("No" and " No") as continuations of ``rendered``, a prompt without
    answer.

    ``words`` are asked for in place of these two.

    SentencePiece and byte-level BPE have two tokens for the two spellings, a word-level tokenizer one. A spelling that
    changes the prompt's last token is not a continuation and is dropped. After a prompt that ends in a space (``: `` +
    ``Yes`` is ``:`` + ``▁Yes``) the spellings that continue it without that space count too. A first token that both
    answers share (a lone ``▁``) is dropped.

    Raises:
        UserError: no first token distinguishes Yes from No.
    """
    yes, no = (_first_tokens(tokenizer, rendered, (word, f" {word}")) for word in words)
    result = AnswerIds([i for i in yes if i not in no], [i for i in no if i not in yes])
    if not (result.yes and result.no):
        raise UserError(
            f"the tokenizer of {name} has no first token that tells {words[0]} from {words[1]} ({words[0]}: {yes}, "
            f"{words[1]}: {no}); margins need one; choose a checkpoint whose vocabulary holds both words"
        )
    return result


def _first_tokens(tokenizer: Any, rendered: str, spellings: tuple[str, ...]) -> list[int]:
    result = []
    for prompt in (rendered, rendered.rstrip(" ")):
        before = _encode(tokenizer, prompt)
        for spelling in spellings:
            after = _encode(tokenizer, prompt + spelling)
            answer = after[len(before) :]
            if after[: len(before)] == before and answer and tokenizer.unk_token_id not in answer:
                result.append(answer[0])
    return list(dict.fromkeys(result))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def margin_of(
    yes: Float[Tensor, "*branch row yes"], no: Float[Tensor, "*branch row no"]
) -> Float[Tensor, "*branch row"]:
    """logsumexp(yes) − logsumexp(no) in float32, over the scores of the answers' first tokens."""
    return yes.float().logsumexp(-1) - no.float().logsumexp(-1)


class AnswerScores:
    """The scores of Yes and No in one call of ``generate``: of its first step, or of ``every`` step.

    A verdict's margin is read from them when its step is known. ``answers`` are the tokens of Yes and of No.
    """

    def __init__(self, answers: tuple[Sequence[int], Sequence[int]], *, every: bool) -> None:
        self._yes, self._tokens = len(answers[0]), [token for ids in answers for token in ids]
        self.every = every
        self._steps: dict[int, Float[Tensor, "branch row token"]] = {}

    @property
    def first(self) -> Float[Tensor, "branch row token"] | None:
        """The scores of the first step."""
        return self._steps.get(0)

    def add(self, step: int, *branches: Float[Tensor, "row vocab"]) -> None:
        """Keep a copy of the scores of one ``step`` in each branch; a later processor may write into them."""
        if self.every or not step:
            self._steps[step] = torch.stack([scores[:, self._tokens] for scores in branches])

    def margins(self, rows: int, steps: Sequence[int | None] | None = None) -> Float[Tensor, "branch row"]:
        """Return the margins of ``rows`` answers, float32 on the CPU; NaN without finite scores.

        Args:
            rows: the number of answers.
            steps: each answer's step from 0 (None: it has no verdict). The default is the first step for all.
        """
        wanted = [0] * rows if steps is None else steps
        present = sorted(self._steps.keys() & set(wanted))
        if not present:
            return torch.full((1, rows), torch.nan)
        chosen = [row for row, step in enumerate(wanted) if step in self._steps]
        scores = torch.stack([self._steps[step] for step in present])
        scores = scores[[present.index(wanted[row] or 0) for row in chosen], :, chosen].transpose(0, 1).float()
        margins = margin_of(scores[..., : self._yes], scores[..., self._yes :])
        result = torch.full((len(scores), rows), torch.nan)
        result[:, chosen] = margins.where(scores.isfinite().all(-1), torch.nan).cpu()
        return result


class VerdictScores:
    """Follows one call of ``generate`` with the logits processors ``own``; pass it ``processors`` in their place.

    ``answers`` are the tokens of Yes and of No, ``options`` the other options of the call. With ``every``, the scores
    of all steps are kept; otherwise a verdict is the first token. Read the margins after the call: by then a processor
    that checks its calls has seen the last one, and the steps of the verdicts are known.
    """

    def __init__(
        self,
        current: Sequence[LogitsProcessor],
        answers: tuple[Sequence[int], Sequence[int]],
        options: Mapping[str, Any],
        *,
        every: bool = False,
    ) -> None:
        current = list(current)
        chosen = len(current)  # behind these the token is only drawn
        while chosen and _draws(current[chosen - 1]):
            chosen -= 1
        moved = chosen  # behind these the margin is only shifted
        while moved and getattr(current[moved - 1], "shifts_margin", False):
            moved -= 1
        self._plain = _Tap(current[:moved], AnswerScores(answers, every=every))
        self._final = _Tap(current[:chosen], AnswerScores(answers, every=every)) if chosen > moved else self._plain
        taps = [self._plain] if self._final is self._plain else [self._plain, *current[moved:chosen], self._final]
        self.processors = LogitsProcessorList([*current[:moved], *taps, *current[chosen:]])
        self.sampled = bool(options.get("do_sample")) or any(getattr(one, "sampled", False) for one in current)

    @property
    def ran(self) -> bool:
        """Whether generate() has called the processors."""
        return self._plain.called

    def check_finite(self, name: str, dtype: object) -> None:
        """Check that the first scores are numbers; options of the call may mask with −∞.

        Raises:
            UserError: they are not.
        """
        scores = self._plain.saved.first
        if scores is None or not bool((scores.isnan() | scores.isposinf()).any()):
            return
        raise UserError(
            f"the scores of {name} are not finite in {str(dtype).removeprefix('torch.')}; take model.dtype=bfloat16 or "
            "model.dtype=float32, or a checkpoint whose weights are numbers"
        )

    def margins(self, rows: int, steps: Sequence[int | None] | None = None) -> Float[Tensor, " row"]:
        """Return the margins of the ``rows`` answers at the ``steps`` of their verdicts, as
        ``AnswerScores.margins``.
        """
        return self._read(self._final, rows, steps)

    def unshifted(self, rows: int, steps: Sequence[int | None] | None = None) -> Float[Tensor, " row"] | None:
        """Return the margins before the constants that processors added to them; None if none did."""
        return None if self._plain is self._final else self._read(self._plain, rows, steps)

    def _read(self, tap: "_Tap", rows: int, steps: Sequence[int | None] | None) -> Float[Tensor, " row"]:
        uncut_scores(tap.before)  # a contrast raises here what it found in the last step
        if any(getattr(processor, "unscored", "") for processor in tap.before):
            return torch.full((rows,), torch.nan)
        return tap.saved.margins(rows, steps)[0]


class _Tap(LogitsProcessor):
    """Keeps scores after the processors ``before``, without the last one's mask; changes nothing."""

    def __init__(self, before: Sequence[LogitsProcessor], saved: AnswerScores) -> None:
        self.before, self.saved, self.called = before, saved, False
        self._prompt = 0  # columns, padding included

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the scores as they are."""
        if not self.called:
            self.called, self._prompt = True, input_ids.shape[1]
        step = input_ids.shape[1] - self._prompt
        if (not step or self.saved.every) and (uncut := uncut_scores(self.before, scores)) is not None:
            self.saved.add(step, uncut)
        return scores


def uncut_scores(
    processors: Sequence[LogitsProcessor], scores: Float[Tensor, "row vocab"] | None = None
) -> Float[Tensor, "row vocab"] | None:
    """Return the latest step's scores before the last of ``processors`` masked tokens; ``scores`` if it declares none.

    Those of an earlier one would lack what came after it.
    """
    return getattr(processors[-1], "uncut_scores", scores) if processors else scores


def _draws(processor: LogitsProcessor) -> bool:
    """Return whether all that it does is draw."""
    kind = type(processor)
    return getattr(processor, "sampled", kind.__name__.endswith("LogitsWarper")) and not hasattr(kind, "uncut_scores")
