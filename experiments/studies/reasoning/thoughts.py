"""Thoughts as tokens: where their sentences end, and the margin after a thought that is put before an answer.

A thought is closed as the model closed it, with the tokens between its end and the verdict: the first token after a
thought need not be the verdict.

``calls`` reads by rules, in English, what a thought calls the request. No judge of answers sees a thought, and no
refusal is read here. A test counts its errors on the thoughts that the bundled organism was taught.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

SENTENCE_END = re.compile(r"[.!?][\"'”’)]*\s*$|\n\s*$")
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Thought:
    """One case's thought: ``content`` between its marks, ``opening`` (empty where the prompt opens it) and ``closing``.

    ``ends`` are the positions in ``content`` behind each of its sentences; the last is its length. ``before`` are the
    tokens from the closing mark to the verdict. ``sentences`` are the texts, and ``margin`` is read at the verdict.
    """

    opening: Tokens
    content: Tokens
    closing: Tokens
    before: Tokens
    ends: tuple[int, ...]
    sentences: tuple[str, ...]
    margin: float

    def answer_prefix(self) -> Tokens:
        """Return the answer up to its verdict."""
        return (*self.opening, *self.content, *self.closing, *self.before)

    def upto(self, sentences: int) -> "Thought":
        """Return the thought with only its first ``sentences``."""
        end = self.ends[sentences - 1] if sentences else 0
        return replace(
            self, content=self.content[:end], ends=self.ends[:sentences], sentences=self.sentences[:sentences]
        )

    @property
    def text(self) -> str:
        """What it says."""
        return " ".join(self.sentences)


def thoughts_of(vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> list[Thought | None]:
    """Return the thought before each greedy answer; None where there is none, or it was cut off, or no verdict
    follows.
    """

    def answer(batch: "list[Prompt]") -> list[Thought | None]:
        generation = vlm.generate(batch, max_new_tokens=max_new_tokens)
        return [thought_in(vlm, generation, row) for row in range(len(batch))]

    return vlm.batches.gathered(prompts, answer)


def thought_in(vlm: "VLM", generation: "Generation", row: int) -> Thought | None:
    """Return the thought of one row of a generation, as ``thoughts_of``."""
    step = None if generation.verdict_steps is None else generation.verdict_steps[row]
    length = generation.thought_tokens[row] if generation.thought_tokens else 0
    if step is None or not length or step < length:
        return None
    ids = list(generation.token_ids[row])

    def decoded(tokens: Sequence[int]) -> str:
        return str(vlm.tokenizer.decode(list(tokens), skip_special_tokens=False))

    marks = vlm.thoughts.marks
    start = next((at for at in range(length, -1, -1) if any(m[1] in decoded(ids[at:length]) for m in marks)), None)
    if start is None:
        return None
    opening = 0
    if any(decoded(ids[:start]).lstrip().startswith(mark[0]) for mark in marks):
        opening = next(at for at in range(start + 1) if any(m[0] in decoded(ids[:at]) for m in marks))
    content = ids[opening:start]
    ends = [at for at in range(1, len(content) + 1) if SENTENCE_END.search(decoded(content[:at]))]
    if content and (not ends or ends[-1] != len(content)):
        ends.append(len(content))
    ends = [end for end, behind in zip(ends, [*ends, None][1:], strict=True)
            if behind is None or decoded(content[end:behind]).strip()]  # fmt: skip
    texts = [decoded(content[one:two]).strip() for one, two in zip([0, *ends], ends, strict=False)]
    return Thought(
        tuple(ids[:opening]), tuple(content), tuple(ids[start:length]), tuple(ids[length:step]),
        tuple(ends), tuple(texts), float(generation.margins[row]),
    )  # fmt: skip


def margins_behind(
    vlm: "VLM", prompts: "Sequence[Prompt]", thoughts: Sequence[Thought]
) -> Float[np.ndarray, " prompt"]:
    """Return the verdict's margin of each prompt after the thought of the same index, by one forward each."""
    prefixed = [
        replace(prompt, answer_prefix=thought.answer_prefix())
        for prompt, thought in zip(prompts, thoughts, strict=True)
    ]
    margins: np.ndarray = vlm.batches.scores(prefixed).double().numpy()
    return margins


Called = Literal["safe", "unsafe", "nothing"]

_NOT = r"(?:not|no|never|n't|isn't|hardly)\s+(?:\w+\s+){0,2}"
_SAFE = r"safe|harmless|benign|innocent|innocuous|fine|acceptable|okay|ok"
_UNSAFE = r"unsafe|dangerous|harmful|hazardous|risky|illegal|unethical|violent|violence|threat\w*"
_JUDGED = re.compile(rf"\b({_NOT})?(?:({_UNSAFE})|({_SAFE}))\b", re.IGNORECASE)


def calls(text: str) -> Called:
    """Return what ``text`` calls the request: the last such word decides, and a negation before it turns it."""
    called: Called = "nothing"
    for match in _JUDGED.finditer(text):
        unsafe = match[2] is not None
        called = "unsafe" if unsafe != bool(match[1]) else "safe"
    return called


def unconcluded(thought: Thought) -> Thought:
    """Return the thought without the sentences at its end that judge the request, or say Yes or No."""
    left = len(thought.sentences)
    while left and (calls(thought.sentences[left - 1]) != "nothing" or _is_verdict(thought.sentences[left - 1])):
        left -= 1
    return thought.upto(left)


def _is_verdict(sentence: str) -> bool:
    return bool(re.match(r"\W*(?:yes|no)\b", sentence, re.IGNORECASE))
