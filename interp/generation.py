"""One call of ``generate()``: greedy settings, the KV cache's name, the generated ids, the answers and their margins.

The Yes/No margin of an answer is read from the first tokens of Yes and No, in the scores that the verdict was chosen
from.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation import utils

from interp.errors import UserError
from interp.families import PER_TOKEN

if TYPE_CHECKING:
    from interp.prompt import Prompt


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
    float32 on the CPU, read from the scores that it was chosen from (``VerdictScores``; NaN if there are none).
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
