"""Responses made elsewhere as an arm of a study: of a closed model, from a web page, or published.

Imports neither torch nor transformers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from experiments.runs.failure_text import blocked_text, failure_text
from experiments.runs.other_tools import GET, Answer, read_answers
from experiments.types import Sample, Status
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

READ = (".jsonl", ".csv", ".tsv", ".xlsx", ".eval")
# Names of files that say nothing.
VAGUE = ("answers", "data", "output", "outputs", "predictions", "responses", "results")


@dataclass(frozen=True)
class NoModel:
    """Takes the model's place if no arm calls a model; ``name`` names the responses under study."""

    name: str


@dataclass(frozen=True)
class Responses:
    """The answers in ``path``: lines of ``id`` and ``response`` (.jsonl, .csv), or another tool's results.

    ``experiments.runs.other_tools`` says which tools.

    An id is the case's own, or its ``pid`` tag where the benchmark has one (MOSSBench). A null response is a request
    that failed. So is a text that tools leave in its place (``experiments.runs.failure_text``). A text like
    "FinishReason.SAFETY" is a request that the provider blocked. A case without a line counts as missing. Other columns
    are ignored.

    ``name`` says which model answered; it finds the published row. By default it is the file's name without its ending,
    or the folder's if that says nothing (``GPT-4o/responses.jsonl``).

    Raises:
        UserError: a file of another kind.
    """

    path: str
    name: str = field(default="", repr=False)
    unscored: ClassVar[str] = "it brings responses made elsewhere, which have no logits"

    def __post_init__(self) -> None:
        if Path(self.path).suffix not in READ:
            raise UserError(f"responses in {self.path}: only {', '.join(READ)} are read; give lines of id and response")
        if not self.name:
            path, folder = Path(self.path), Path(self.path).resolve().parent.name
            object.__setattr__(self, "name", folder if folder and path.stem.lower() in VAGUE else path.stem)

    def fingerprint(self) -> str:
        """``sha256:`` and 12 hex digits, of the file.

        Raises:
            UserError: it cannot be read.
        """
        try:
            return f"sha256:{hashlib.sha256(Path(self.path).read_bytes()).hexdigest()[:12]}"
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror}); {GET}") from None

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Always refused: a study reads ``answers`` instead.

        Raises:
            UserError: always.
        """
        raise UserError(f"the responses of {self.path} were made elsewhere; they answer a study's cases, not a prompt")

    def check(self, samples: Sequence[Sample]) -> str:
        """Return a sentence on how many of the cases have a response.

        Raises:
            UserError: none has, or the file cannot be used.
        """
        count = sum(self._find(sample) is not None for sample in samples)
        if not count:
            raise UserError(
                f"{self.path}: none of its ids (first: {next(iter(_read(self.path)))!r}) is a case of this benchmark "
                f"(first: {samples[0].id!r}); give the benchmark's ids"
            )
        return f"{self.path}: {count} of {len(samples)} cases have a response"

    def answers(self, samples: Sequence[Sample]) -> "tuple[list[Sample], Generation]":
        """Return the cases that have a line, and their answers without margins."""
        import torch

        from interp.generation import Generation

        lines = {sample.id: line for sample in samples if (line := self._find(sample)) is not None}
        states = [_status(line, self.path) for line in lines.values()]
        return [sample for sample in samples if sample.id in lines], Generation(
            texts=[text for _, text, _ in states],
            token_ids=[[] for _ in states],
            margins=torch.full((len(states),), torch.nan),
            finished=[True] * len(states),
            statuses=[status.value for status, _, _ in states],
            reasons=[reason for _, _, reason in states],
        )

    def _find(self, sample: Sample) -> Answer | None:
        lines = _read(self.path)
        return lines.get(sample.id) or lines.get(sample.tags.get("pid", ""))


def _status(answer: Answer, path: str) -> tuple[Status, str, str]:
    """Return the status of a request, the answer's text, and why it is no answer of the model."""
    response = answer.response
    if answer.stopped is Status.PROVIDER_BLOCKED:
        return Status.PROVIDER_BLOCKED, "", f"a content filter stopped the request ({path}, {answer.line})"
    if response is None:
        return Status.TRANSPORT_FAILED, "", f"null in {path}"
    text = response.strip()
    if blocked_text(text):
        return Status.PROVIDER_BLOCKED, "", f"the text of a blocked request in {path}: {text[:80]!r}"
    if failure_text(text):
        return Status.TRANSPORT_FAILED, "", f"the text of a failed request in {path}: {text[:80]!r}"
    return (answer.stopped or Status.ANSWERED if text else Status.EMPTY), text, ""


@cache
def _read(path: str) -> dict[str, Answer]:
    """Return the answers by case.

    Raises:
        UserError: see ``read_answers``; or a case occurs twice, or there is no answer.
    """
    answers: dict[str, Answer] = {}
    for answer in read_answers(Path(path)):
        if answer.case in answers:
            raise UserError(f"{path}, {answer.line}: id {answer.case!r} occurs twice; keep one response for each case")
        answers[answer.case] = answer
    if not answers:
        raise UserError(f"{path} has no response; give at least one line of id and response")
    return answers
