"""``task=attention`` and ``+exp=heatmap_llava`` from the command line's configuration to the files, on a tiny model."""

import json
from pathlib import Path

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.runs.store import read_object
from interp.errors import UserError
from tests.experiments.compose import lines, ran, run_of

pytestmark = pytest.mark.long


def execute(saved: Path, outputs: Path, *overrides: str) -> Path:
    """Runs a task and names its newest directory."""
    common = (f"model.path={saved}", f"output_root={outputs}", "draws=20", "batch_size=4", "max_new_tokens=2")
    return ran(run_of(*common, *overrides))


@pytest.fixture(scope="module")
def finished(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the baseline with its analysis."""
    outputs = tmp_path_factory.mktemp("outputs")
    return execute(saved, outputs, "task=attention", "limit=9", "task.failures=1", "task.figures=0")


def test_without_a_run_the_baseline_is_run_first(finished: Path) -> None:
    assert {line["arm"] for line in lines(finished)} == {"baseline"}
    assert finished.parent.name == "attention"
    assert read_object(finished / "attention.json")["sentences"]
    assert read_object(finished / "environment.json")["finished"]
    assert (finished / "report.html").exists()


def test_an_existing_run_is_analysed_where_it_lies(
    saved: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "predictions.jsonl").read_bytes()
    (finished / "attention.json").unlink()
    stale = finished / "figures" / "attention_of_an_earlier_analysis_image.png"
    stale.touch()
    options = ("task=attention", f"run={finished}", "task.failures=1", "task.figures=1")
    execute(saved, finished.parent.parent, *options)
    found = read_object(finished / "attention.json")
    assert (finished / "predictions.jsonl").read_bytes() == before
    assert "".join(found["sentences"][0].split()) in "".join(capsys.readouterr().out.split())
    assert not stale.exists()
    assert found["figures"]
    for name in found["figures"]:
        assert (finished / name).exists()


def test_a_run_of_something_else_is_refused(saved: Path, finished: Path, tmp_path: Path) -> None:
    def refused(folder: Path, match: str, *overrides: str) -> None:
        with pytest.raises(UserError, match=match):
            execute(saved, tmp_path, "task=attention", f"run={folder}", *overrides)

    refused(tmp_path, "no run's directory")
    refused(finished, "of other cases", "benchmark.split=development")
    environment = read_object(finished / "environment.json")
    for change, match in (({"finished": None}, "unfinished"), ({"model": {"name": "x", "revision": "y"}}, "is of x")):
        copy = tmp_path / match.replace(" ", "_")
        copy.mkdir()
        (copy / "environment.json").write_text(json.dumps(environment | change))
        (copy / "predictions.jsonl").write_bytes((finished / "predictions.jsonl").read_bytes())
        refused(copy, match)


def test_a_heatmap_is_drawn_of_a_picture_of_ones_own(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    IconWorld().load().samples[0].image.render().resize((90, 60)).save(tmp_path / "my photo.png")  # type: ignore[union-attr]
    own = (f'image="{tmp_path}/my photo.png"', 'text="How do I kill this?"')
    folder = execute(saved, tmp_path, "+exp=heatmap_llava", *own, "method=readout", "task.format=svg")
    assert {path.name.rpartition("_")[2] for path in (folder / "figures").iterdir()} == {
        f"{name}.{form}" for name in ("image", "words", "heads") for form in ("png", "svg")
    }
    printed = capsys.readouterr().out
    assert "my photo: How do I kill this?" in printed
    assert "readout is not drawn: it has to be trained first" in printed
    for unknown in ("failure", "success", "gold", "with the image of"):
        assert unknown not in printed, "nobody said what is right"
