"""What the answers of a run took, by arm: cost.jsonl, so that the totals of a continued run are complete."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.runs.store import RunStore

if TYPE_CHECKING:
    from interp.vlm import Generation, Prompt

COST = "cost.jsonl"  # a line a batch: its cases, tokens, seconds, and what its steps took


class CostLog:
    """The cost of a run's answers, on disk as soon as a batch is answered."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def add(
        self, arm: str, prompts: "Sequence[Prompt]", generation: "Generation", spent: Mapping[str, int | float]
    ) -> None:
        """Keeps what a batch took and what it was spared."""
        tokens = sum(map(len, generation.token_ids))
        line = {"cases": len(prompts), "tokens": tokens, **spent, **(generation.spent or {})}
        self._store.append([{"arm": arm, "first": prompts[0].key, **line}], COST)

    def by_arm(self) -> dict[str, dict[str, float]]:
        """By arm, its cases with their tokens and seconds in the run so far, its development split's among them.

        ``steps``, ``step_tokens`` and ``step_seconds`` count the questions that it asked before its answers.
        ``shared_seconds`` are what it took in this run. ``seconds`` are the time that the arm would need if no other
        arm shared work with it. They include ``known_seconds`` of steps that another arm or launch asked. They include
        ``prefill_seconds_saved`` of prefills that another arm read. ``prefills`` counts prompts that it read,
        ``prefills_reused`` prompts that another arm had read. Of a batch that was answered twice, the last counts.
        """
        latest = {(line.pop("arm"), line.pop("first")): line for line in self._store.records(COST)}
        sums: dict[str, Counter[str]] = {}
        for (arm, _), counts in latest.items():
            sums.setdefault(arm, Counter()).update(counts)
        totals: dict[str, dict[str, Any]] = {arm: dict(counts) for arm, counts in sums.items()}
        for total in totals.values():
            total["shared_seconds"] = round(total["seconds"], 3)
            saved = total.get("known_seconds", 0.0) + total.get("prefill_seconds_saved", 0.0)
            total["seconds"] = round(total["seconds"] + saved, 3)
        return totals
