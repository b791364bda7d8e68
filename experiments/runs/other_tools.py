"""Answers in the results of other tools, read as an arm of a study: lmms-eval, VLMEvalKit and Inspect.

- lmms-eval writes JSON lines with ``--log_samples``: ``doc``, ``doc_id`` and ``resps``.
- VLMEvalKit writes a table (.xlsx, .tsv, .csv) with ``index`` and ``prediction``.
- Inspect writes a log (.eval), a zip with a JSON file for each sample.

Text in these files is data. No code of the tools is run, and nothing is unpickled.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks.rows import read_file
from experiments.types import Status
from interp.errors import UserError

COLUMNS = ("id", "response", "index", "prediction")
IDS = ("id", "pid", "question_id", "index")  # where a document of lmms-eval names its case; else its ``doc_id``
STOPS = {  # stop reasons of Inspect; anything else is an answer
    "content_filter": Status.PROVIDER_BLOCKED,
    "max_tokens": Status.TRUNCATED,
    "model_length": Status.TRUNCATED,
}
LARGEST = 64 * 2**20  # bytes of one unpacked sample
GET = (
    "responses come from lines of id and response (.jsonl, .csv), or from a file that lmms-eval (.jsonl), VLMEvalKit "
    "(.xlsx, .tsv) or Inspect (.eval) wrote; check the path"
)


class Answer(NamedTuple):
    """One answer: its line in the file, its case, its text (None: the request failed), and how it stopped."""

    line: str
    case: str
    response: str | None
    stopped: Status | None = None


def read_answers(path: Path) -> Iterator[Answer]:
    """Yield the answers in a file of one of the tools, or in lines of ``id`` and ``response``.

    Raises:
        UserError: the file is missing or cannot be read, or a line has no case, no answer or several.
    """
    if path.suffix == ".eval":
        yield from _inspect(path)
        return
    if not path.is_file():
        raise UserError(f"{path} is missing; {GET}")
    rows = read_file(path, COLUMNS, option="method")
    for problem in rows.problems:
        raise UserError(f"{path}, {problem.place}: {problem.reason}; correct the file")
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


def _inspect(path: Path) -> Iterator[Answer]:
    if not path.is_file():
        raise UserError(f"{path} is missing; {GET}")
    try:
        with zipfile.ZipFile(path) as log:
            names = sorted(name for name in log.namelist() if name.startswith("samples/") and name.endswith(".json"))
            for name in names:
                if log.getinfo(name).file_size > LARGEST:
                    raise UserError(f"{path}: {name} is larger than {LARGEST // 2**20} MiB; remove the sample")
                sample = json.loads(log.read(name))
                if sample.get("epoch", 1) != 1:
                    raise UserError(f"{path}: has several epochs; an arm has one answer a case; run one epoch")
                output, failed = sample.get("output") or {}, sample.get("error") is not None
                choice = (output.get("choices") or [{}])[0]
                text = output.get("completion") or _text_of(choice)
                stopped = STOPS.get(str(choice.get("stop_reason")))
                yield Answer(name, str(sample["id"]), None if failed else text, stopped)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: cannot be read as a log of Inspect ({type(error).__name__}); give a .eval file, or lines of id "
            "and response"
        ) from None


def _text_of(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice's message, whose content is a text or a list of parts."""
    content = (choice.get("message") or {}).get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
