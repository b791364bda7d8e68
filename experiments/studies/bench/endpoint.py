"""``task=bench_eval`` of a model behind an endpoint: seconds and requests a case, beside the same model here.

The same arms are asked of both in turns, as a study asks them: their verdicts by score, and with ``model.engine`` whole
answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from experiments.api.model import check_methods
from experiments.api.parity import both_sides
from experiments.benchmarks.images import open_image
from experiments.config import Run
from experiments.evaluation.answer import Answering
from experiments.runs.records import current
from experiments.runs.resumption import open_run
from experiments.studies.bench.harness import Bound, Result, Say, Turns, repeat, table, timed
from experiments.types import Sample
from mitigation.controls import TextOnly
from mitigation.method import Baseline
from mitigation.prior_correction import PriorCorrection
from mitigation.vcd import VCD

HERE, THERE = "here", "there"
SCORE, ANSWERS = "score", "generate"
SLOWER = 3.0  # times the baseline alone, at most, for a verdict of a contrast by score
PLAIN = "baseline"
Way = tuple[str, str, str]
"""A protocol, an arm and a side."""


class EndpointTimes:
    """Both sides, the cases, and what each way of asking them took in the last round."""

    turns: Turns

    def __init__(self, run: Run, samples: Sequence[Sample], twin: str | None, dtype: str) -> None:
        if run.endpoint is not None:
            check_methods(arms_of(0), run.endpoint, scored=True)
        here, there = both_sides(run.endpoint, run.model.name, twin, dtype)
        self.run, self.samples = run, samples
        self.vlm, self.endpoint = here, there.config
        self.sides: dict[str, Any] = {HERE: here, THERE: there}
        self.requests: dict[Way, float] = {}
        self.records: dict[Way, dict[str, Mapping[str, Any]]] = {}
        self.protocols = (SCORE, ANSWERS) if self.endpoint.engine else (SCORE,)
        self.arms = arms_of(_side_of(here, samples[0]))

    def measure(self, repeats: int, seconds: float) -> None:
        """Rounds of every arm on both sides, after one untimed case on each."""
        ways = [(how, arm, side) for how in self.protocols for arm in self.arms for side in self.sides]
        for side in self.sides:
            self._ask((SCORE, PLAIN, side), self.samples[:1])
        work = {" ".join(way): timed(partial(self._ask, way, self.samples), self.vlm.device) for way in ways}
        self.turns = Turns(work)
        repeat([self.turns], repeats, seconds)

    def _ask(self, way: Way, samples: Sequence[Sample]) -> None:
        how, arm, side = way
        run = replace(self.run, protocol=how)
        with _run_of_its_own(run) as store:
            answering = Answering(run, self.sides[side], store, Console(quiet=True))
            answering.answer({arm: self.arms[arm]}, samples)
            self.requests[way] = answering.costs.by_arm()[arm].get("requests", 0) / len(samples)
            self.records[way] = {record["case"]: record for record in current(store.records())}

    def rows(self) -> list[dict[str, Any]]:
        """By protocol and arm: seconds a case on both sides, requests, and what differs."""
        found = []
        for how in self.protocols:
            for arm in self.arms:
                names = {side: f"{how} {arm} {side}" for side in self.sides}
                own, other = (self.records[how, arm, side] for side in self.sides)
                gaps = [abs(own[case]["margin"] - record["margin"]) for case, record in other.items()
                        if None not in (own[case]["margin"], record["margin"])]  # fmt: skip
                found.append({
                    "protocol": how, "arm": arm,
                    **{f"seconds_{side}": self.turns.median(name) / len(self.samples) for side, name in names.items()},
                    "there_over_here": self.turns.ratio(names[THERE], names[HERE]),
                    "over_baseline": self.turns.ratio(names[THERE], f"{how} {PLAIN} {THERE}"),
                    "requests": self.requests[how, arm, THERE],
                    "margins_off": max(gaps, default=None),
                    "unlike": sum(own[case]["response"] != one["response"] for case, one in other.items()),
                })  # fmt: skip
        return found


def arms_of(side: int) -> dict[str, Any]:
    """The plain model and three contrasts that an endpoint can give; noise is drawn on squares of ``side`` pixels."""
    noise = VCD(noise="diffusion8", noise_side=side or None)
    return {PLAIN: Baseline(), "text_only": TextOnly(), "prior_correction": PriorCorrection(), "vcd": noise}


def beside_endpoint(
    run: Run, samples: Sequence[Sample], *, twin: str | None, dtype: str, repeats: int, seconds: float, say: Say
) -> Result:
    """The bench: a row for each protocol and arm, and whether verdicts by score are as fast as they should be.

    Raises:
        UserError: there is no endpoint or no twin, or the endpoint gives too little for the contrasts.
    """
    bench = EndpointTimes(run, samples, twin, dtype)
    say("measuring")
    bench.measure(repeats, seconds)
    rows = bench.rows()
    shown = [
        {
            "asked": row["protocol"], "what": row["arm"], "here (s)": f"{row['seconds_here']:.3f}",
            "there (s)": f"{row['seconds_there']:.3f}", "there/here": f"{row['there_over_here']:.2f}",
            "there/baseline": f"{row['over_baseline']:.2f}", "requests": f"{row['requests']:.2f}",
        }
        for row in rows
    ]  # fmt: skip
    limits = [Bound(f"{row['arm']}: by score over the baseline there", row["over_baseline"], SLOWER)
              for row in rows if row["protocol"] == SCORE and row["arm"] != PLAIN]  # fmt: skip
    return Result({"rows": rows, "rounds": bench.turns.rounds, "concurrency": bench.endpoint.concurrency},
                  [table("A case here and at the endpoint", shown)], limits, [_said(rows, len(samples))])  # fmt: skip


def _said(rows: Sequence[Mapping[str, Any]], cases: int) -> str:
    off = [row["margins_off"] for row in rows if row["margins_off"] is not None]
    unlike = sum(row["unlike"] for row in rows)
    far = f"margins differ by at most {max(off):.1e}" if off else "no margins were given"
    return f"{unlike} of {cases * len(rows)} answers unlike those here; {far}"


@contextmanager
def _run_of_its_own(run: Run) -> Iterator[Any]:
    with (
        TemporaryDirectory() as folder,
        open_run(folder, run.name, run.config, run.config_hash, fresh=True) as store,
    ):
        yield store


def _side_of(here: Any, sample: Sample) -> int:
    """Pixels of the squares that the model's processor makes."""
    from interp.vlm import Prompt

    assert sample.image is not None
    return int(here.encode([Prompt(sample.prompt, open_image(sample.image))])["pixel_values"].shape[-1])
