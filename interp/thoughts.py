"""Thought and answer of a model that thinks first, told apart in what it wrote. Imports no torch.

A thought stands between a pair of ``MARKS``. The template may have written the opening mark already, so a closing mark
without one ends a thought too. The last closing mark counts: a thought may quote it, and a model may think twice.
``split`` reads text, ``Thoughts`` tokens: a mark that is one token of the model is found only as this token. A thought
may quote it letter by letter.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from interp.errors import UserError

Marks = tuple[str, str]
MARKS: tuple[Marks, ...] = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"),
    ("<|channel>", "<channel|>"),
)  # fmt: skip
NAME_THE_MARKS = """name the model's marks: 'model.thinking={open: "<reflect>", close: "</reflect>"}'"""
"""What to do where a template shows no marks."""


class Spoken(NamedTuple):
    """What a model wrote: its thought with its marks, its answer, and whether the thought was closed.

    A thought that was cut off leaves an empty answer. ``tokens`` are the thought's, 0 where only text is known.
    """

    thought: str
    answer: str
    finished: bool
    tokens: int = 0


def split(text: str, marks: tuple[Marks, ...] = MARKS, *, starts_thought: bool = False) -> Spoken:
    """Thought and answer of a text; thought + answer is the text, and one without marks is all answer.

    ``starts_thought`` is whether the prompt has opened the thought: a text without marks is then all thought.
    """
    opening, closing = _patterns(marks)
    end = 0
    for match in closing.finditer(text):
        end = match.end()
    if opening.match(text, end) or (starts_thought and not end):
        return Spoken(text, "", finished=False)
    return Spoken(text[:end], text[end:], finished=True)


@cache
def _patterns(marks: tuple[Marks, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the beginning of a thought, and its end; of no marks, patterns that are never found."""
    opening, closing = (
        "|".join(map(re.escape, texts)) or "(?!)" for texts in ([m[0] for m in marks], [m[1] for m in marks])
    )
    return re.compile(rf"[\s\ufeff]*(?:{opening})", re.IGNORECASE), re.compile(closing, re.IGNORECASE)


def check_marks(named: Mapping[str, Any]) -> None:
    """Check a pair of marks that the user names: ``{"open": "<reflect>", "close": "</reflect>"}``.

    Raises:
        UserError: other keys, a mark that is no text or a blank one, or twice the same.
    """
    texts = [named.get("open"), named.get("close")]
    told = all(isinstance(one, str) and one.strip() for one in texts) and texts[0] != texts[1]
    if set(named) != {"open", "close"} or not told:
        raise UserError(
            f"model.thinking={dict(named)}: a thought has two different marks, as in model.thinking={{open: '<think>', "
            "close: '</think>'}; give both, or null for those that are known"
        )


def marks_of(named: Mapping[str, str] | None) -> tuple[Marks, ...]:
    """Return the pair that the user ``named``, or else all known pairs."""
    return MARKS if named is None else ((named["open"], named["close"]),)


def marks_in(template: str, named: Mapping[str, str] | None) -> tuple[Marks, ...]:
    """Return the pair that the user ``named``, or else the pairs with a mark in the chat template."""
    return tuple(pair for pair in marks_of(named) if named is not None or any(mark in template for mark in pair))


class Thoughts:
    """The marks of one model by token and by text: the pair ``named``, or else all known pairs.

    ``tokenizer`` is one of transformers'; ``ends`` are the tokens that end an answer, ``template`` its chat template.
    """

    def __init__(
        self, tokenizer: Any, *, ends: Collection[int], named: Mapping[str, str] | None = None, template: str = ""
    ) -> None:
        self.marks, self.in_template = marks_of(named), marks_in(template, named)
        self._tokenizer, self._ends = tokenizer, ends
        closing = {mark: self._token(mark) for _, mark in self.marks}
        self._closing = {token for token in closing.values() if token is not None}
        self._opening = {
            token
            for mark, close in self.marks
            if closing[close] is not None and (token := self._token(mark)) is not None
        }
        self._by_text = tuple(pair for pair in self.marks if closing[pair[1]] is None)

    def closed(self, ids: Sequence[int]) -> bool:
        """Return whether generated ``ids`` hold a thought that has come to its end."""
        spoken = self.spoken(ids, str(self._tokenizer.decode(ids, skip_special_tokens=True)), starts_thought=False)
        return bool(spoken.thought) and spoken.finished

    def starts_thought(self, prompt: str) -> bool:
        """Return whether the rendered ``prompt`` ends within a thought that it opens itself."""
        return prompt.rstrip().endswith(tuple(opening for opening, _ in self.marks))

    def expected(self, prompt: str) -> bool:
        """Return whether the model thinks after the rendered ``prompt``.

        The template or the user knows marks, and the prompt does not close an empty thought at once.
        """
        return bool(self.in_template) and not prompt.rstrip().endswith(tuple(closing for _, closing in self.marks))

    def tokens(self, prompt: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that open a thought behind the rendered ``prompt`` (none where it does so), and that close
        it.
        """
        opened = next((pair for pair in self.marks if prompt.rstrip().endswith(pair[0])), None)
        opening, closing = opened or (self.in_template or self.marks)[0]
        ids = [tuple(self._tokenizer(mark, add_special_tokens=False)["input_ids"]) for mark in (opening, closing)]
        return (() if opened else ids[0]), ids[1]

    @property
    def by_token(self) -> bool:
        """Whether each closing mark of the template's or the user's is one token."""
        return not set(self.in_template) & set(self._by_text)

    def split_rows(self, rows: Sequence[Sequence[int]], *, starts_thought: bool) -> dict[str, Any]:
        """``texts`` (of the answers), ``thoughts`` and ``thought_tokens`` of a ``Generation`` with these ids."""
        texts = [text.strip() for text in self._tokenizer.batch_decode(rows, skip_special_tokens=True)]
        spoken = [self.spoken(ids, text, starts_thought=starts_thought) for ids, text in zip(rows, texts, strict=True)]
        return {
            "texts": [each.answer for each in spoken],
            "thoughts": [each.thought for each in spoken],
            "thought_tokens": [each.tokens for each in spoken],
        }

    def told_apart(self, rendered: str) -> tuple[str, str]:
        """Return how a thought is marked after the prompt ``rendered``, and why it cannot be told from its answer.

        The second text is "" if it can.
        """
        ids = partial(self._tokenizer, add_special_tokens=False)
        opening, closing = self.tokens(rendered)
        before = [*opening, *ids("It is a bug.")["input_ids"], *closing]
        split = self.split_rows([[*before, *ids("Yes.")["input_ids"]]], starts_thought=self.starts_thought(rendered))
        start, end = (self._tokenizer.decode(list(mark)) for mark in (opening, closing))
        how = "one token" if self.by_token else "text, not one token"
        marks = f"from {start or 'the beginning: the template opens it'} to {end} ({how})"
        right = split["texts"][0] == "Yes." and split["thought_tokens"][0] == len(before)
        why = "" if right else f"after {end!r} 'Yes.' is read as {split['texts'][0]!r}; name the marks: model.thinking"
        return marks, why

    def spoken(self, ids: Sequence[int], text: str, *, starts_thought: bool) -> Spoken:
        """Thought and answer of generated ``ids``, whose decoded ``text`` has no special tokens."""
        end = max((at + 1 for at, token in enumerate(ids) if token in self._closing), default=0)
        if not end and not self._opening & set(ids):  # no mark is one of its tokens
            spoken = split(text, self._by_text, starts_thought=starts_thought)
            if not spoken.thought:
                return spoken
            return spoken._replace(answer=spoken.answer.strip(), tokens=self._tokens_of(spoken, ids))
        rest = list(ids[end:])
        first = next((token for token in rest if token not in self._ends and self._decoded([token]).strip()), None)
        if first in self._opening or (starts_thought and not end):
            return Spoken(self._decoded(ids), "", finished=False, tokens=len(ids))
        answer = str(self._tokenizer.decode(rest, skip_special_tokens=True)).strip()
        return Spoken(self._decoded(ids[:end]), answer, finished=True, tokens=end)

    def _token(self, mark: str) -> int | None:
        """Return the single token that a mark is; None where it is several."""
        token = self._tokenizer.convert_tokens_to_ids(mark)
        return None if token is None or token == self._tokenizer.unk_token_id else int(token)

    def _decoded(self, ids: Sequence[int]) -> str:
        words = [token for token in ids if token not in self._ends]
        return str(self._tokenizer.decode(words, skip_special_tokens=False)).strip()

    def _tokens_of(self, spoken: Spoken, ids: Sequence[int]) -> int:
        """Return how many of the ``ids`` belong to a thought that was found in their text."""
        if not spoken.finished:
            return len(ids)
        length = len(spoken.thought)

        def holds_thought(count: int) -> bool:  # a mark's last character may take several tokens
            text = str(self._tokenizer.decode(list(ids[:count]), skip_special_tokens=True)).lstrip()
            return text[:length] == spoken.thought

        return bisect_left(range(len(ids)), True, key=holds_thought)
