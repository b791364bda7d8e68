"""Answers kept on disk, a file each, found by the hash of all that was sent. Holds neither prompts nor keys."""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from experiments.api.reading import Answer
from experiments.outcomes import Status
from experiments.store import read_object
from interp.errors import UserError

KEPT = (Status.ANSWERED, Status.TRUNCATED)  # where the model spoke; anything else may come out otherwise next time


def content_key(sent: dict[str, Any]) -> str:
    """The hash of a request whose images are given by the digests of their pixels."""
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class AnswerCache:
    """``folder`` is made when the first answer is kept. Safe for several threads and processes."""

    folder: Path

    def get(self, key: str) -> Answer | None:
        """The answer kept under ``key``; None where there is none, or none that can be read."""
        kept = read_object(self._path(key))
        try:
            status, text, margin = Status(kept["status"]), kept["text"], kept["margin"]
        except (KeyError, ValueError):
            return None
        if status not in KEPT or not isinstance(text, str) or not isinstance(margin, float | int | None):
            return None
        return Answer(status, text, "", math.nan if margin is None else float(margin), str(kept.get("model", "")))

    def put(self, key: str, answer: Answer) -> None:
        """Keeps an answer of the model; others are passed over. UserError where the folder cannot be written."""
        if answer.status not in KEPT:
            return
        margin = answer.margin if math.isfinite(answer.margin) else None
        value = {"status": answer.status.value, "text": answer.text, "margin": margin, "model": answer.model}
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as draft:
                json.dump(value, draft)
            os.replace(draft.name, path)
        except OSError as error:
            raise UserError(
                f"cannot write {path} ({error.strerror}); answers are kept there; make room and run the command again"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
