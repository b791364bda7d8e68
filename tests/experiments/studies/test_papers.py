"""``+exp=papers``: both benchmarks from clones in small, one after the other, on the bundled model."""

from pathlib import Path
from unittest.mock import Mock

import pytest

import interp.loading
from experiments.benchmarks.mmsafeaware import KEY
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.tables import headline
from tests.experiments.benchmarks import test_mmsafeaware
from tests.experiments.benchmarks.test_images import noise
from tests.experiments.benchmarks.test_mossbench import entry, tree
from tests.experiments.compose import ran, run_of


def mmsafeaware(root: Path) -> Path:
    """Two cases of every scored subset, each with its picture."""
    kinds = ("typical", "attack", "over_safety")
    chosen = [case for kind in kinds for case in [id_ for id_, entry in KEY.items() if entry.subset == kind][:2]]
    images = test_mmsafeaware.tree(root, *sorted(chosen, key=int))
    for seed, case in enumerate(chosen):
        noise(seed, (48, 48)).save(images / f"{case}.png")
    return root


def mossbench(root: Path) -> Path:
    """Three benign requests, one of a type, and their harmful twins."""
    for part in ("data", "data_contrast"):
        tree(root, {pid: entry(pid) for pid in ("1", "101", "201")}, part)
    return root


def made(outputs: Path, name: str) -> SavedRun:
    (folder,) = (outputs / name).iterdir()
    assert (folder / "report.html").is_file()
    return read_run(folder)


@pytest.mark.long
def test_both_are_asked_by_the_same_arms_and_reported_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Mock(wraps=interp.loading.load)
    monkeypatch.setattr(interp.loading, "load", load)
    clones = (f"mmsafeaware={mmsafeaware(tmp_path / 'mm')}", f"mossbench={mossbench(tmp_path / 'moss')}")
    small = ("draws=20", "task.answer_tokens=4", "attention=false")
    ran(run_of("+exp=papers", *clones, f"output_root={tmp_path / 'out'}", *small))
    assert load.call_count == 1
    verdicts = made(tmp_path / "out", "papers_mmsafeaware")
    refusals = made(tmp_path / "out", "papers_mossbench")
    assert verdicts.results.arms == ["baseline", "vcd_cli", "text_only", "calibrated_shift", "prompt", "safety_prompt"]
    assert set(verdicts.results.arms) - set(refusals.results.arms) == {"calibrated_shift"}
    answered = [run.results.get("baseline", "answered") for run in (verdicts, refusals)]
    assert [row and row.n for row in answered] == [6, 6]
    printed = capsys.readouterr().out
    assert [line.split()[2] for line in printed.splitlines() if line.startswith("report of ")] == [
        "mmsafeaware:", "mossbench:"]  # fmt: skip
    said = " ".join(printed.split())
    for run in (verdicts, refusals):
        assert said.count(" ".join(headline(run.results, run.metrics)[0].split())) == 1
