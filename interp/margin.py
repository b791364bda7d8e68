"""The Yes/No margin of an answer: the first tokens of Yes and No, and the scores that the verdict was chosen from.

The verdict is the answer's first token; of a model that thinks first, the token of its verdict behind the thought
(``Place``). ``VLM.generate`` reads the margin after all logits processors, so a method has nothing to do for it. A
logits processor may declare, as an attribute or a property:

``first_scores``
    Its scores of the first step before it masked tokens, [row vocab]. A cutoff must declare them: a masked answer has
    no logit, so without them the margin is missing (NaN).
``step_scores``
    As ``first_scores``, of the latest step; None where it has none. Without them a verdict behind a thought has no
    margin under a cutoff.
``unscored``
    Why its scores hold no margin; "" (the default) if they do. All margins are then missing.
``shifts_margin``
    True if all that it does is add a constant to the margin. ``Generation.unshifted`` is then the margin without it.
``sampled``
    True if it draws the token. The margin is read before it (or from its ``first_scores``), as it is before the
    samplers of transformers (``TemperatureLogitsWarper`` and all others of that name).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from interp.device_copies import to_device
from interp.errors import UserError
from interp.thoughts import Thoughts

YES, NO = "Yes", "No"
# Options of generate() that choose tokens from scores which no processor of ours sees.
UNSEEN = ("assistant_model", "assistant_early_exit", "watermarking_config", "custom_generate")

Metric = Callable[[Float[Tensor, "row vocab"]], Float[Tensor, " row"]]
"""What a tool measures: one number a prompt, from the logits of its first answer token. ``VLM.margin`` is one."""


class AnswerIds(NamedTuple):
    """First tokens of the two answers, usually one or two each; no token is in both."""

    yes: list[int]
    no: list[int]


class Place(NamedTuple):
    """Where an answer's verdict is: its step of ``generate`` from 0 (None: there is none), and the tokens there."""

    step: int | None
    answers: AnswerIds


_CLOSING = re.compile(r"[\W_]*(?:yes|no)(?:</\w+>|<\|end_of_box\|>|[\W_])*", re.IGNORECASE)
_OPENING = re.compile(r"[\W_]*(?:yes|no)(?![^\W_])", re.IGNORECASE)
_BEFORE = re.compile(  # **, <answer>, \boxed{
    r"[\W_]*(?:(?:answer|boxed|text|begin_of_box)[\W_]*)*", re.IGNORECASE
)


def verdict_position(tokenizer: Any, ids: Sequence[int], answers: AnswerIds, *, opening: bool = False) -> int | None:
    """The index in the generated ``ids`` of the token that says Yes or No, or None without a verdict.

    By the evaluation's rules for verdicts: the last such token if no word follows it, else the first one of an answer
    that begins with its verdict; with ``opening`` the latter before the former. Markup may stand around it.
    """

    def text(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), skip_special_tokens=True))

    either = {token for spellings in answers for token in spellings}
    said = [place for place, token in enumerate(ids) if token in either]
    if not said:
        return None
    begins = bool(_BEFORE.fullmatch(text(ids[: said[0]])) and _OPENING.match(text(ids[said[0] :])))
    ends = bool(_CLOSING.fullmatch(text(ids[said[-1] :])))
    if begins and (opening or not ends):
        return said[0]
    return said[-1] if ends else None


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


class VerdictScores:
    """Follows one call of ``generate`` with the logits processors ``own``; pass it ``processors`` in their place.

    ``answers`` are the first tokens of Yes and of No, ``options`` the other options of the call. ``later`` are the
    tokens whose scores are kept at the steps after the first too; none: a verdict is the first token. Reading the
    margins is for afterwards: only then has a processor that checks its calls seen the last one, and only then is it
    known where the verdicts are.
    """

    def __init__(
        self,
        own: Sequence[LogitsProcessor],
        answers: tuple[Sequence[int], Sequence[int]],
        options: Mapping[str, Any],
        *,
        later: Sequence[int] = (),
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
        self._plain = _Tap(tokens, own[:moved], later)
        self._final = _Tap(tokens, own[:chosen], later) if chosen > moved else self._plain
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

    def margins(self, rows: int, places: Sequence[Place] | None = None) -> Float[Tensor, " row"]:
        """The margins of the ``rows`` answers, float32 on the CPU; NaN where there is none.

        ``places`` are those of their verdicts; None: all at the first step.
        """
        return self._read(self._final, rows, places)

    def unshifted(self, rows: int, places: Sequence[Place] | None = None) -> Float[Tensor, " row"] | None:
        """The margins before the constants that processors added to them; None if none did."""
        return None if self._plain is self._final else self._read(self._plain, rows, places)

    def _read(self, tap: "_Tap", rows: int, places: Sequence[Place] | None) -> Float[Tensor, " row"]:
        scores = tap.read() if self._seen else None
        if scores is None:
            return torch.full((rows,), torch.nan)
        scores = scores.float()
        margins = margin_of(scores[:, : self._yes], scores[:, self._yes :])
        first = margins.where(scores.isfinite().all(1), torch.nan).cpu()
        return first if places is None else tap.later.at(places, first)


class LaterScores:
    """The scores of ``tokens`` at each step after the first, of which a verdict's margin is read once it is known."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._steps: dict[int, Float[Tensor, "some token"]] = {}

    def add(self, scores: Float[Tensor, "some vocab"] | None, step: int) -> None:
        """Keep the scores of one ``step``; None if the step has none."""
        if scores is not None:
            self._steps[step] = scores[:, self.tokens].float()

    def at(self, places: Sequence[Place], first: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
        """The margins at ``places``, on the CPU: of a verdict in the first step that of ``first``; NaN without one."""
        margins, on_host = first.clone(), {}
        column = {token: index for index, token in enumerate(self.tokens)}
        for row, (step, answers) in enumerate(places):
            if step == 0:
                continue
            if step not in self._steps:
                margins[row] = torch.nan
            else:
                if step not in on_host:
                    on_host[step] = self._steps[step].cpu()
                scores = on_host[step][row]
                yes, no = (scores[[column[token] for token in ids]] for ids in answers)
                known = bool(yes.isfinite().all() and no.isfinite().all())
                margins[row] = margin_of(yes[None], no[None])[0] if known else torch.nan
        return margins


class _Tap(LogitsProcessor):
    """Keeps the scores of ``tokens`` at the first step, after the processors ``before``; changes nothing.

    ``later`` are the tokens whose scores it keeps at further steps.
    """

    def __init__(self, tokens: Sequence[int], before: Sequence[LogitsProcessor], later: Sequence[int] = ()) -> None:
        self._tokens, self._before, self.later = list(tokens), before, LaterScores(later)
        self._kept: Tensor | None = None
        self._prompt = 0  # columns, padding included
        self.called = False

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """The scores as they are."""
        self.called = True
        if self._kept is None:
            self._kept = scores[:, self._tokens]  # a copy, because a later processor may write into the scores
            self._prompt = input_ids.shape[1]
        elif self.later.tokens:
            self.later.add(step_scores(self._before, scores), input_ids.shape[1] - self._prompt)
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


def step_scores(
    processors: Sequence[LogitsProcessor], scores: Float[Tensor, "row vocab"]
) -> Float[Tensor, "some vocab"] | None:
    """The latest step's scores behind ``processors``, before the last of them masked any; None where it has none."""
    if not processors or not hasattr(processors[-1], "first_scores"):
        return scores
    return getattr(processors[-1], "step_scores", None)


class Answering:
    """Follows in which rows of one call of ``generate`` the next token may be the verdict.

    It is the first one; behind a thought (``thoughts``, None for a model that does not think first), any token of the
    answer. ``at_once`` says of each prompt whether it may be the first one, for no thought is open, and ``closed``
    whether its answer has begun with a whole thought. ``anywhere``: an answer's verdict may be each of its tokens, and
    which one is known afterwards. ``answers`` are the tokens of Yes and of No there, ``later`` all of them where a
    verdict may come after the first step.
    """

    def __init__(
        self,
        answers: AnswerIds,
        thoughts: Thoughts | None = None,
        *,
        at_once: Sequence[bool] = (True,),
        closed: Sequence[bool] = (False,),
        anywhere: bool = False,
    ) -> None:
        self.answers, self._thoughts, self.anywhere = answers, thoughts, anywhere
        self._at_once, self._closed = list(at_once), list(closed)
        self.first_alone = thoughts is None
        self.later = [] if self.first_alone and not anywhere else [token for ids in answers for token in ids]
        self.now: Bool[Tensor, " row"] | None = None

    def follow(self, generated: Int[Tensor, "row new"]) -> Bool[Tensor, " row"]:
        """Whether the verdict may come behind the tokens ``generated`` so far; kept as ``now``."""
        rows, step = generated.shape
        if self._thoughts is None:
            self.now = torch.full((rows,), not step, device=generated.device)
            return self.now
        self.now = to_device(torch.tensor(self._closed if step else self._at_once), generated.device)
        if step and self._thoughts.by_token:
            closing = to_device(torch.tensor(sorted(self._thoughts.closing)), generated.device)
            self.now = self.now | torch.isin(generated, closing).any(1)
        elif step:
            ended = [self._thoughts.closed(row) for row in generated.tolist()]
            self.now = self.now | torch.tensor(ended, device=generated.device)
        return self.now

    def asked_for(self, kept: Bool[Tensor, "row vocab"]) -> Bool[Tensor, " row"]:
        """Whether a verdict may be among the tokens ``kept`` of this step, whose score is then needed."""
        among = kept[:, self.later].any(1)
        return among if self.anywhere or self.now is None else among & self.now


def _draws(processor: LogitsProcessor) -> bool:
    """Whether all that it does is draw."""
    kind = type(processor)
    return getattr(processor, "sampled", kind.__name__.endswith("LogitsWarper")) and not hasattr(kind, "first_scores")
