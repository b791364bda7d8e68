"""Responses made elsewhere as an arm of a study: of a closed model, from a web page, published, or of another tool.

The tools are lmms-eval and VLMEvalKit:

- lmms-eval writes JSON lines with ``--log_samples``: ``doc``, ``doc_id`` and ``resps``.
- VLMEvalKit writes a table (.xlsx, .tsv, .csv) with ``index`` and ``prediction``.

Evaluation tools and gateways also leave texts in an answer's place if a request failed or was blocked. Text in these
files is data. No code of the tools is run, and nothing is unpickled. Imports neither torch nor transformers.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from experiments.benchmarks.rows import read_file
from experiments.types import Sample, Status
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt

COLUMNS = ("id", "response", "index", "prediction")
IDS = ("id", "pid", "question_id", "index")  # where a document of lmms-eval names its case; else its ``doc_id``
GET = (
    "responses come from lines of id and response (.jsonl, .csv), or from a file that lmms-eval (.jsonl) or VLMEvalKit "
    "(.xlsx, .tsv) wrote; check the path"
)


class Answer(NamedTuple):
    """One answer: its line in the file, its case, and its text (None: the request failed)."""

    line: str
    case: str
    response: str | None


def read_answers(path: Path) -> Iterator[Answer]:
    """Yield the answers in a file of one of the tools, or in lines of ``id`` and ``response``.

    Raises:
        UserError: the file is missing or cannot be read, or a line has no case, no answer or several.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; {GET}")
    rows = read_file(path, COLUMNS, option="method")
    for problem in rows.problems:
        raise UserError(f"{path}, {problem.location}: {problem.reason}; correct the file")
    for line, row in rows.rows:
        case, response = _of_row(row, f"{path}, {line}")
        if path.suffix != ".jsonl":  # a table has no null
            response = "" if response is None else str(response)
        if not isinstance(response, str | None):
            raise UserError(f"{path}, {line}: the response is no text; give a string, or null for none")
        yield Answer(line, str(case), response)


def _of_row(row: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Return the case and the answer of a line."""
    if "id" in row and "response" in row:
        return row["id"], row["response"]
    if "index" in row and "prediction" in row:
        return row["index"], row["prediction"]
    if "doc_id" in row and "resps" in row:
        doc = row["doc"] if isinstance(row.get("doc"), Mapping) else {}
        case = next((doc[name] for name in IDS if doc.get(name) not in (None, "")), row["doc_id"])
        responses = row["resps"]
        while isinstance(responses, list):
            if len(responses) != 1:
                raise UserError(f"{where}: {len(responses)} responses of one document; an arm has one answer a case")
            responses = responses[0]
        return case, responses
    raise UserError(f"{where}: has no id or no response; every line has both; complete it")


LONGEST = 600  # characters: a model's answer that begins alike goes on
WHAT = r"(api|http|request|connection|server|upstream|gateway|openai)"
# VLMEvalKit's; then an error object, a gateway's page, and what scripts print of a failed request.
KNOWN = re.compile(
    r"failed to obtain answer via api\b"
    r"|\{\s*[\"']error[\"']\s*:"
    r"|<(!doctype )?html\b.{0,300}\b(50[234]|bad gateway|service unavailable|gateway time-?out)\b"
    rf"|{WHAT}[ _]?((api|request|connect|retry) ?)?(error|timeout|timed out)\b"
    r"|(error|exception)\s*:?\s*((code|status|http)\s*)?:?\s*(429|5\d\d)\b"
    r"|\[(api )?error\]"
    r"|(rate limit|quota) (reached|exceeded)",
    re.IGNORECASE | re.DOTALL,
)
# finish_reason of the compatible endpoints: OpenAI and Azure, Gemini's own names, Anthropic, Zhipu.
BLOCKED = {
    *("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_safety"),
    *("refusal", "sensitive"),
}
POLICY = re.compile(
    r"content[ _-]?(filter|policy|management)|responsible ?ai|safety (system|settings|polic)|moderation|\bflagged\b"
    r"|prohibited[ _]content|usage polic|acceptable use|blocked (by|due)|block_?reason",
    re.IGNORECASE,
)
# A finish_reason with its name before it, or one that is no ordinary word; an error of the request, which POLICY reads.
_REASON = re.compile(
    rf"(content_filter|prohibited_content|image_safety|finish_?reason[.: =]{{1,2}}({'|'.join(sorted(BLOCKED))}))\W*",
    re.IGNORECASE,
)
_REFUSED_REQUEST = re.compile(
    r"\{\s*[\"']error[\"']\s*:|(error|exception)\s*:?\s*((code|status|http)\s*)?:?\s*4\d\d\b", re.IGNORECASE
)


def blocked_text(text: str) -> bool:
    """Return whether ``text`` says that the provider blocked the request ("FinishReason.SAFETY"), and so is no
    answer.
    """
    text = text.strip()
    if len(text) > LONGEST:
        return False
    refused = _REFUSED_REQUEST.match(text) is not None and POLICY.search(text) is not None
    return refused or _REASON.fullmatch(text) is not None


def failure_text(text: str) -> bool:
    """Return whether ``text`` reports a failure: the model said nothing, so nothing is judged."""
    text = text.strip()
    return len(text) <= LONGEST and KNOWN.match(text) is not None


READ = (".jsonl", ".csv", ".tsv", ".xlsx")
# Names of files that say nothing.
VAGUE = ("answers", "data", "output", "outputs", "predictions", "responses", "results")


@dataclass(frozen=True)
class NoModel:
    """Takes the model's place if no arm calls a model; ``name`` names the responses under study."""

    name: str


@dataclass(frozen=True)
class Responses:
    """The answers in ``path``: lines of ``id`` and ``response`` (.jsonl, .csv), or another tool's results.

    ``experiments.runs.responses`` says which tools.

    An id is the case's own, or its ``pid`` tag where the benchmark has one (MOSSBench). A null response is a request
    that failed. So is a text that tools leave in its place (``experiments.runs.responses``). A text like
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
    if response is None:
        return Status.TRANSPORT_FAILED, "", f"null in {path}"
    text = response.strip()
    if blocked_text(text):
        return Status.PROVIDER_BLOCKED, "", f"the text of a blocked request in {path}: {text[:80]!r}"
    if failure_text(text):
        return Status.TRANSPORT_FAILED, "", f"the text of a failed request in {path}: {text[:80]!r}"
    return (Status.ANSWERED if text else Status.EMPTY), text, ""


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
