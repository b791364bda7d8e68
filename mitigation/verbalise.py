"""Verbalising: the picture is put into words, the words into the request, and the request is judged in words.

For models that judge a request by its words and overlook its picture. Three steps: *describe* asks the model what the
picture shows. *Resolve* replaces the words that point to the picture ("How do I kill this?" → "How do I kill the
cockroach?"). The request is then asked as before, without the picture. Nothing is trained. Its neighbours: ECSO
(``mitigation.ecso``), and captions put before the question (``resolve="before"``). Importing this module loads no
torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from interp.errors import UserError
from mitigation import reference_resolution
from mitigation.method import Work, check_choice, check_count, check_pictured
from mitigation.steps import Steps, check_words

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

DESCRIBES = ("model", "oracle")
RESOLVES = ("rule", "before", "pointing", "alone")
DESCRIBE = "What is in the image?"
DESCRIPTION, REQUEST, RESOLVED, QUESTION = "description", "request", "resolved by", "question"
_NO_DESCRIPTION = "nothing: the description is empty"


@dataclass(frozen=True)
class Verbalise:
    """Describes the picture, replaces the words that point to it, and judges the request in words.

    ``describe``: "model" asks the model ``question`` (greedily, ``description_tokens`` at most), "oracle" takes the
    benchmark's own sentence (``Prompt.shows``). ``resolve``: "rule" puts the description's noun phrase in place of the
    words that point (``mitigation.reference_resolution``, English). If no word points to the picture, the description
    is put on a line before the question. "before" always puts it there and does not change the request. "pointing" does
    the same with "There is a cockroach.". "alone" judges only that sentence instead of the request: a filter on the
    picture. ``picture``: whether the picture stays in the last question. If not, the question does not mention it
    either, unless ``reword`` is False.

    An answer's ``Generation.steps`` are the description, the judged request and how it was resolved. If the question
    was reworded, they also have the complete question.
    """

    describe: str = "model"
    resolve: str = "rule"
    picture: bool = False
    question: str = DESCRIBE
    description_tokens: int = 64
    reword: bool = True
    works_over_api: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("describe", self.describe, DESCRIBES)
        check_choice("resolve", self.resolve, RESOLVES)
        check_count("description_tokens", self.description_tokens, 1, hint="take 64")
        if self.describe == "model" and not self.question.strip():
            raise UserError(f"question={self.question!r}; the model is asked what the picture shows; give a question")

    @property
    def needs_description(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return self.describe == "oracle"

    @property
    def drops_image(self) -> bool:
        """See ``mitigation.method.Abilities``."""
        return not self.picture

    @property
    def work(self) -> Work:
        """See ``mitigation.method.Abilities``."""
        captions = int(self.describe == "model")
        return Work(prompts=1 + captions, step_tokens=captions * self.description_tokens)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Return greedy answers to the requests in words, with their margins.

        Raises:
            UserError: a prompt has no image, or no description for ``describe="oracle"``; or the family cannot answer
                without an image, which it must without ``picture``.
        """
        check_pictured(prompts, "verbalise puts what a picture shows into words")
        if not self.picture:
            check_words(vlm, "keep the picture in the last question: method.picture=true")
        steps = Steps(vlm, len(prompts))
        descriptions = self.descriptions(steps, prompts)
        judged = {row: self.last_question(prompts[row], description) for row, description in descriptions.items()}
        for row, question in judged.items():
            for name, text in question.steps.items():
                steps.note(row, name, text)
        return steps.answers({row: question.prompt for row, question in judged.items()}, max_new_tokens=max_new_tokens)

    def last_question(self, prompt: "Prompt", description: "str | Sequence[str]") -> "Judged":
        """Return the last question about ``prompt``, by its description.

        If there are several pictures and descriptions, each description is put after its picture, or, without
        ``picture``, in its place.
        """
        if not isinstance(description, str):
            captions = (f"Picture {number}: {_sentences(text)}" for number, text in enumerate(description, 1))
            turns = []
            for turn in prompt.turns:  # a caption after each picture, or in its place
                pairs = [(p,) if isinstance(p, str) else (p, next(captions))[not self.picture :] for p in turn.parts]
                turns.append(replace(turn, parts=tuple(chain(*pairs))))
            written = prompt.with_turns(turns)
            steps = {REQUEST: prompt.request or prompt.text, RESOLVED: "in place", QUESTION: written.text}
            return Judged(written, steps)
        parts = reference_resolution.parts(prompt.text, prompt.request)
        request, how, before = parts.request, "", ""
        thing = reference_resolution.phrase(description)
        name = reference_resolution.definite(thing)
        if self.resolve == "rule" and thing and (named := reference_resolution.resolved(request, name)):
            request, how = named, "rule"
        elif not description.strip():
            how = _NO_DESCRIPTION
        elif self.resolve == "alone":
            request, how = reference_resolution.there_is(thing) if thing else _sentences(description), "alone"
        elif self.resolve == "pointing" and thing:
            before, how = reference_resolution.there_is(thing), "pointing"
        else:
            before, how = _sentences(description), "before"
        reworded = reference_resolution.unpictured(parts.before) if self.reword and not self.picture else parts.before
        text = "\n".join(filter(None, (before, f"{reworded}{request}{parts.after}")))
        steps = {REQUEST: request, RESOLVED: how} | ({QUESTION: text} if before or reworded != parts.before else {})
        return Judged(replace(prompt, text=text, image=prompt.image if self.picture else None, request=request), steps)

    def in_words(self, prompts: "Sequence[Prompt]", descriptions: "Sequence[str | Sequence[str]]") -> "list[Prompt]":
        """Return the last question of each prompt with its description."""
        return [self.last_question(*pair).prompt for pair in zip(prompts, descriptions, strict=True)]

    def descriptions(self, steps: Steps, prompts: "Sequence[Prompt]") -> "dict[int, str | Sequence[str]]":
        """Return what each picture shows, by the row of its prompt; without rows that are lost (``Steps``)."""
        if self.describe == "model":
            return self._described(steps, prompts)
        for row, prompt in enumerate(prompts):
            if not prompt.shows.strip() or len(prompt.images) > 1:
                raise UserError(
                    f"prompt '{prompt.key or prompt.text}' has no description of each picture; describe=oracle needs "
                    "the benchmark's descriptions; set describe=model"
                )
            steps.note(row, DESCRIPTION, prompt.shows)
        return {row: prompt.shows for row, prompt in enumerate(prompts)}

    def _described(self, steps: Steps, prompts: "Sequence[Prompt]") -> "dict[int, str | Sequence[str]]":
        """Return what the model says of each prompt's picture, or of its pictures."""
        lines: dict[int, list[str]] = {row: [] for row in range(len(prompts))}
        for number in range(max(len(prompt.images) for prompt in prompts)):
            questions = {
                row: replace(prompt, text=self.question, image=prompt.images[number], system=None, messages=())
                for row, prompt in enumerate(prompts)
                if number < len(prompt.images)
            }
            name = DESCRIPTION if number == 0 else f"{DESCRIPTION} {number + 1}"
            for row, text in steps.ask(name, questions, max_new_tokens=self.description_tokens).items():
                lines[row].append(text)
        return {row: texts[0] if len(texts) == 1 else texts for row, texts in lines.items() if row not in steps.lost}


@dataclass(frozen=True)
class Judged:
    """The last question about a case, and what is noted of how it came about."""

    prompt: "Prompt"
    steps: Mapping[str, str]


def _sentences(description: str) -> str:
    """Return the description on one line, ended."""
    text = " ".join(description.split())
    return text if text[-1:] in ".!?" else f"{text}."
