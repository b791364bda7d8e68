"""MOSSBench's questions and published responses, read from a clone of its repository. Knows nothing of judges or rates.

``data/images_information/information.json`` holds the questions by pid, ``data/results/<model>/data.js`` the responses:
one assignment ``cache['<model>'] = {…}`` of valid JSON, which is read as data and never run.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.mossbench import BENIGN, TYPES, read_entries
from interp.errors import UserError

_ASSIGNMENT = re.compile(r"\A\s*cache\[[^\]]{1,200}\]\s*=\s*")
_WAY_OUT = "give the root of a clone of turningpoint-ai/MOSSBench: task.root=<folder>"


@dataclass(frozen=True)
class Question:
    """One benign question as published; ``image`` is the file that it names, which may not be there."""

    pid: str
    text: str
    type: str
    image: Path
    image_path: str
    metadata: Mapping[str, Any]


def questions(root: Path) -> dict[str, Question]:
    """pid → question. UserError where the file cannot be read, or an entry lacks a field or comes twice."""
    found: dict[str, Question] = {}
    for entry in read_entries(root, BENIGN):
        try:
            number = str(entry.fields["metadata"]["over"]).removeprefix("type ")
            image = str(entry.fields["image"])
            question = Question(entry.pid, str(entry.fields["question"]), TYPES[number], _inside(root / "data", image),
                                image, dict(entry.fields["metadata"]))  # fmt: skip
            if entry.pid in found:
                raise ValueError("this pid was there before")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{entry.where}: pid {entry.pid}: {type(error).__name__} {error}; each pid comes once, with question, "
                "image (inside the root) and metadata.over (type 1, 2 or 3); mend it"
            ) from None
        found[question.pid] = question
    return found


def responses(root: Path) -> dict[str, dict[str, str | None]]:
    """Model, as its folder is named → pid → response, None where the published file has null.

    Raises:
        UserError: no model has published responses here, or a file is not of the published shape.
    """
    found = {path.parent.name: _responses(path) for path in sorted((root / "data" / "results").glob("*/data.js"))}
    if not found:
        raise UserError(f"{root / 'data' / 'results'}: no <model>/data.js with published responses; {_WAY_OUT}")
    return found


def _responses(path: Path) -> dict[str, str | None]:
    text, cut = _ASSIGNMENT.subn("", _text(path), count=1)
    if not cut:
        raise UserError(f"{path}: does not begin with cache['<model>'] = …; give the published file")
    answers: dict[str, str | None] = {}
    for pid, entry in _object(path, text.rstrip().removesuffix(";")).items():
        response = entry.get("response") if isinstance(entry, dict) else 0
        if response is not None and not isinstance(response, str):
            raise UserError(f"{path}: pid {pid}: the response is no text; each entry has a response, a text or null")
        answers[str(pid)] = response
    return answers


def _inside(root: Path, name: str) -> Path:
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"image {name!r} leaves {root}")
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path} cannot be read ({reason}); {_WAY_OUT}") from None


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); give the published file") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}; it is a JSON object by pid; give the published file")
    return value
