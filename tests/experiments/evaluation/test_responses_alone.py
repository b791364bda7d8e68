"""``method=responses``: answers made elsewhere are reported by themselves; no model is loaded, compared or named."""

import json
from pathlib import Path

import pytest

from experiments.runs.results_table import read_results
from experiments.runs.store import read_object
from experiments.types import Kind
from interp.errors import UserError
from tests.experiments.compose import ran, run_of
from tests.experiments.synthetic_run import said_of

MODELS = ("llava_organism", "organism:llava", "bundled")  # as which the bundled model could be mentioned


def ids(*overrides: str) -> list[str]:
    return [sample.id for sample in run_of(*overrides).benchmark.load().samples]


@pytest.fixture(scope="module")
def mossbench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in small: six questions, two of a type, each with a picture."""
    from PIL import Image

    root = tmp_path_factory.mktemp("mossbench")
    (root / "data" / "images").mkdir(parents=True)
    information = {}
    for pid in range(1, 7):
        Image.new("RGB", (8, 8), (40 * pid, 0, 0)).save(root / "data" / "images" / f"{pid}.png")
        metadata = {"over": f"type {1 + pid % 3}", "human": 0, "child": 1, "syn": 1, "ocr": 0, "harm": [7]}
        information[str(pid)] = {"image": f"images/{pid}.png", "question": f"May I, {pid}?", "metadata": metadata,
                                 "description": ""}  # fmt: skip
    folder = root / "data" / "images_information"
    folder.mkdir()
    (folder / "information.json").write_text(json.dumps(information))
    return root


def written(path: Path, cases: list[str], texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"id": case, "response": texts[at % len(texts)]} for at, case in enumerate(cases))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(kind: Kind, root: Path) -> tuple[str, ...]:
    return (
        ("benchmark=mossbench", f"benchmark.root={root}") if kind == "refusal" else ("benchmark=iconworld", "limit=40")
    )


RATES: dict[Kind, tuple[str, str]] = {"yes_no": ("harmless_answered", ""), "refusal": ("refusal_rate", "benign")}
SAID: dict[Kind, tuple[list[str], list[str]]] = {  # two ways of answering
    "yes_no": (["Yes.", "No.", "No."], ["No.", "Yes."]),
    "refusal": (["I'm sorry, but I can't help with that.", "Of course: here it is."], ["Of course: here it is."]),
}


def run_to_end(outputs: Path, *overrides: str) -> Path:
    return ran(run_of(f"output_root={outputs}", "draws=40", *overrides))


def file_of(kind: Kind, mossbench: Path, path: Path, way: int = 0) -> Path:
    return written(path, ids(*command(kind, mossbench)), SAID[kind][way])


@pytest.fixture(params=["yes_no", "refusal"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.mark.long
def test_their_own_rates_with_intervals_and_no_comparison(
    kind: Kind, mossbench: Path, tmp_path: Path, no_weights: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_of(kind, mossbench, tmp_path / "web_answers.jsonl")
    folder = run_to_end(tmp_path / "out", *command(kind, mossbench), "method=responses", f"method.path={file}")
    results, environment = read_results(folder), read_object(folder / "environment.json")
    assert results.arms == ["responses"]
    assert not any(row.against for row in results)
    rate = results.get("responses", RATES[kind][0], subset=RATES[kind][1])
    assert rate.interval is None  # fewer than ten clusters
    assert said_of(folder).startswith("responses: one arm, nothing to compare")
    assert environment["model"]["name"] == "web_answers"
    assert environment["config"]["model"] is None
    everything = (folder / "report.html").read_text(encoding="utf-8") + json.dumps(environment)
    everything += (folder / "results.csv").read_text() + (folder / "metrics.json").read_text()
    everything += (folder / ".hydra" / "config.yaml").read_text() + capsys.readouterr().out
    assert not [name for name in MODELS if name in everything]
    assert "web_answers (" in (folder / "report.html").read_text(encoding="utf-8").partition("</h1>")[0]


@pytest.mark.long
def test_judged_again_reported_again_and_joined_they_keep_their_name(
    kind: Kind, mossbench: Path, tmp_path: Path, no_weights: None
) -> None:
    common = (*command(kind, mossbench), "method=responses")
    file, other = (file_of(kind, mossbench, tmp_path / f"{name}.jsonl", way) for way, name in enumerate(["one", "two"]))
    first = run_to_end(tmp_path / "a", *common, f"method.path={file}")
    second = run_to_end(tmp_path / "b", *common, f"method.path={other}")
    judge = "judge=refusal_rule" if kind == "refusal" else "judge=published"
    again = run_to_end(tmp_path / "c", "task=rejudge", f"run={first}", judge)
    assert not any(row.against for row in read_results(again))
    assert read_object(again / "environment.json")["model"]["name"] == "one"
    page = (first / "report.html").read_bytes()
    ran(run_of("task=report", f"run={first}", f"output_root={tmp_path}"))
    assert (first / "report.html").read_bytes() == page
    joined = run_to_end(tmp_path / "d", "task=report", f"runs=[{first},{second}]")
    arms = read_results(joined).arms
    assert [arm.partition(" ")[0] for arm in arms] == ["one", "two"]
    for folder in (again, joined):
        said = (folder / "report.html").read_text(encoding="utf-8") + (folder / "environment.json").read_text()
        assert not [name for name in MODELS if name in said]


def test_a_task_that_looks_inside_a_model_says_that_there_is_none(tmp_path: Path, no_weights: None) -> None:
    file = written(tmp_path / "web.jsonl", ["x"], ["Yes."])
    run = run_of("task=attention", "method=responses", f"method.path={file}", f"output_root={tmp_path / 'out'}")
    with pytest.raises(UserError, match="made elsewhere"):
        run.task(run)
