"""steps.jsonl: what the model said to the questions that methods ask before an answer, kept as soon as it is said.

A run that is killed between two steps of a batch goes on after the last one, and arms that ask the same of the same
picture share the answer. What each step took stands beside it, so that an arm's cost can be told as if it were alone.
"""

from collections.abc import Mapping
from typing import Any

from experiments.config import digest
from experiments.runs.records import writable
from experiments.runs.resumption import RunStore
from mitigation.steps import StepAnswer

STEPS = "steps.jsonl"


class StepStore:
    """The steps kept in ``store``, of ``model``; ``identity`` is all that tells its words from another model's."""

    def __init__(self, store: RunStore, model: Any, identity: list[object]) -> None:
        self.model = model
        self._store, self._identity = store, identity
        self._known = {line.pop("step"): StepAnswer(**line) for line in store.records(STEPS)}

    def known(self, asked: str) -> StepAnswer | None:
        """See ``mitigation.steps.recorded_by``."""
        return self._known.get(self._key(asked))

    def keep(self, answers: Mapping[str, StepAnswer]) -> None:
        """Writes them to disk before it returns."""
        lines = {self._key(asked): vars(one) | {"text": writable(one.text)} for asked, one in answers.items()}
        self._store.append([{"step": key, **line} for key, line in lines.items()], STEPS)
        self._known |= {key: StepAnswer(**line) for key, line in lines.items()}

    def _key(self, asked: str) -> str:
        return digest([*self._identity, asked])
