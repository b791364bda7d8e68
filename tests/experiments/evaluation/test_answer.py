"""Answering on a tiny model: memory that runs out, features shared between arms, and the score protocol."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console

from experiments.config import Run
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import limited
from experiments.runs.store import open_run
from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from mitigation.attention_steering import AttentionSteering
from mitigation.method import Baseline, abilities
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.vrtuning.method import NewAdapter
from mitigation.wrappers import Sampled, Shifted
from tests.experiments.compose import lines, ran, run_of

Records = dict[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Greedy:
    """The baseline on a device that holds ``fits`` prompts at once."""

    fits: int

    def __repr__(self) -> str:
        return "Greedy()"

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        if len(prompts) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


def run_in(folder: Path, *overrides: str) -> Run:
    return run_of(
        f"output_root={folder}", "limit=10", "draws=20", "batch_size=8", "max_new_tokens=2", "seed=1", *overrides
    )


def answered(run: Run, vlm: VLM, arms: dict[str, Any]) -> tuple[Records, Answering, str]:
    loaded = run.benchmark.load()
    said = io.StringIO()
    with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
        answering = Answering(run, vlm, store, Console(file=said, width=200))
        answering.answer(arms, limited(loaded.samples, run.limit))
        return {(line["arm"], line["case"]): line for line in store.records()}, answering, said.getvalue()


@pytest.mark.long
def test_where_memory_runs_out_the_arm_goes_on_with_less_and_says_so(
    vlm: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interp.batching._free", lambda: None)
    run = run_in(tmp_path / "short")
    enough, _, quiet = answered(run_in(tmp_path / "enough"), vlm, {"a": Greedy(99)})
    short, answering, said = answered(run, vlm, {"a": Greedy(3)})
    assert "out of memory" not in quiet
    assert said.count("out of memory") == 2  # 8 → 4 → 2, for both batches
    assert answering.remarks()["batch_rows"] == {"a": 2}
    assert short.keys() == enough.keys()
    for key, record in short.items():
        assert record["verdict"] == enough[key]["verdict"]
        assert record["response"] == enough[key]["response"]
        assert record["margin"] == pytest.approx(enough[key]["margin"], abs=1e-5)


SHARED_ARMS: dict[str, Any] = {
    "baseline": Baseline(),
    "vcd": VCD(),
    "other_noise": VCD(noise_step=999),
    "shift": ConstantShift(0.5),
    "heavier": VCD(alpha=2.0),
    "drawn": Sampled(Baseline(), temperature=0.7, seed=1),
}
DISTINCT = 3  # clean, and two noises


class Killed(BaseException):
    """What ends a process."""


def asked_until(
    monkeypatch: pytest.MonkeyPatch, run: Run, vlm: VLM, dies_at: int | None = None
) -> tuple[list[tuple[str, str]], str, Answering]:
    """What is asked, as arm and first case of each batch, until the process dies; and the records, byte by byte."""
    asked: list[tuple[str, str]] = []
    ask = Answering.generate

    def counted(self: Answering, arm: str, method: Any, prompts: Any) -> Generation:
        if len(asked) == dies_at:
            raise Killed
        asked.append((arm, prompts[0].key))
        return ask(self, arm, method, prompts)

    samples = limited(run.benchmark.load().samples, run.limit)
    with (
        monkeypatch.context() as patched,
        open_run(run.output_root, run.name, run.config, run.config_hash, fresh=False) as store,
    ):
        patched.setattr(Answering, "generate", counted)
        answering = Answering(run, vlm, store, Console(file=io.StringIO()))
        with suppress(Killed):
            answering.answer(SHARED_ARMS, samples)
        return asked, (store.path / "predictions.jsonl").read_text(), answering


@pytest.mark.long
def test_arms_share_prefills_and_a_killed_run_goes_on_with_the_same_bits(
    vlm: VLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, records, answering = asked_until(monkeypatch, run_in(tmp_path / "whole"), vlm)
    batches = list(dict.fromkeys(case for _, case in whole))
    order = ["baseline", "drawn", "vcd", "heavier", "other_noise", "shift"]  # by what they read
    assert whole == [(arm, case) for case in batches for arm in order]  # all arms before the next batch
    assert Counter(json.loads(line)["arm"] for line in records.splitlines()) == dict.fromkeys(SHARED_ARMS, 10)
    assert (answering.prefills.computed, answering.prefills.reused) == (10 * DISTINCT, 10 * 6)
    for dies_at in (1, 4, 7, 11):
        run = run_in(tmp_path / str(dies_at))
        before, part, _ = asked_until(monkeypatch, run, vlm, dies_at)
        after, continued, _ = asked_until(monkeypatch, run, vlm)
        assert len(part.splitlines()) < len(records.splitlines())
        assert sorted(before + after) == sorted(whole)  # nothing twice, nothing lost
        assert sorted(continued.splitlines()) == sorted(records.splitlines())
    for arm, method in SHARED_ARMS.items():  # the others change nothing
        (folder := tmp_path / "alone" / arm).mkdir(parents=True)
        alone, _, _ = answered(run_in(folder), vlm, {"baseline": Baseline(), arm: method})
        mine = [json.loads(line) for line in records.splitlines() if json.loads(line)["arm"] == arm]
        assert mine == [record for (name, _), record in alone.items() if name == arm]


@pytest.mark.long
def test_scored_verdicts_are_the_signs_of_the_generated_margins(vlm: VLM, tmp_path: Path) -> None:
    arms = {"baseline": Baseline(), "vcd": VCD()}
    generated, _, _ = answered(run_in(tmp_path), vlm, arms)
    scored, _, _ = answered(run_in(tmp_path, "protocol=score"), vlm, arms)
    for key, record in scored.items():
        assert record["settings"] != generated[key]["settings"]
        assert record["margin"] == generated[key]["margin"]
        assert record["verdict"] == ("yes" if record["margin"] > 0 else "no")
        assert record["response"] == ("Yes." if record["margin"] > 0 else "No.")
        assert (record["protocol"], record["judge"], record["status"]) == ("score", "margin", "answered")
    assert all("protocol" not in record for record in generated.values())


@dataclass(frozen=True)
class Draws:
    """A method of a user's that draws its tokens and does not say so."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return vlm.generate(prompts, max_new_tokens=max_new_tokens, do_sample=True, temperature=2.0, seed=1)


@dataclass(frozen=True)
class Loop:
    """A method that draws in a loop of its own, which nothing here sees."""

    sampled: ClassVar[bool] = True

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        return Generation([""] * len(prompts), [[]] * len(prompts), torch.zeros(len(prompts)), [True] * len(prompts))


@pytest.mark.long
def test_records_keep_the_margin_before_a_constant_and_whether_tokens_were_drawn(vlm: VLM, tmp_path: Path) -> None:
    arms = {"baseline": Baseline(), "vcd": VCD(), "shift": ConstantShift(2.0), "vcd_shifted": Shifted(VCD(), -1.0)}
    drawn = {"sampled": Sampled(ConstantShift(2.0)), "draws": Draws(), "loop": Loop()}
    records, _, _ = answered(run_in(tmp_path), vlm, arms | drawn)
    plain = {"shift": "baseline", "vcd_shifted": "vcd", "sampled": "baseline"}
    for (arm, case), record in records.items():
        assert ("margin_unshifted" in record) == (arm in plain)
        assert record.get("sampled", False) is (arm in drawn)
        if arm in plain:
            assert record["margin_unshifted"] == records[plain[arm], case]["margin"]
    with_scores, _, _ = answered(run_in(tmp_path, "protocol=score"), vlm, {"shift": ConstantShift(2.0)})
    for key, record in with_scores.items():
        assert record["margin_unshifted"] == records[key]["margin_unshifted"]
        assert record["margin"] == records[key]["margin"]


@pytest.mark.long
def test_arms_without_margins_do_not_enter_a_scored_study(
    saved: Path, vlm: VLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = ("+arms.drawn._target_=mitigation.wrappers.Sampled", "+arms.drawn.method._target_=mitigation.vcd.VCD")
    run = run_in(tmp_path, "method=prompt", *drawn, "protocol=score", f"model.path={saved}")
    folder = ran(run)
    assert "drawn does not enter: protocol=score: its answers are sampled" in " ".join(capsys.readouterr().out.split())
    assert {line["arm"] for line in lines(folder)} == {"baseline", "prompt"}
    drawing = abilities(Sampled(Baseline())).unscored
    assert drawing
    assert not abilities(VCD()).unscored
    assert abilities(AttentionSteering(method=Sampled(VCD()))).unscored == drawing
    assert abilities(NewAdapter("a", inner=Sampled(VCD()))).unscored == drawing

    class Blind:
        def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
            return replace(vlm.generate(prompts), margins=torch.full((len(prompts),), torch.nan))

    with pytest.raises(UserError, match="no margins"):
        answered(run, vlm, {"blind": Blind()})


@pytest.mark.long
def test_what_cannot_change_an_answer_does_not_begin_a_new_run() -> None:
    assert run_of("verbose=true").config_hash == run_of().config_hash
    assert run_of("protocol=score").config_hash != run_of().config_hash != run_of("batch_tokens=100").config_hash
