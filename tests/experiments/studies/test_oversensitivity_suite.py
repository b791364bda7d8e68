"""``+exp=oversensitivity_suite``: what is at hand is run, and one page shows it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.report import suite_page
from interp.errors import UserError
from tests.experiments.benchmarks.test_oversensitivity_benchmarks import mssbench
from tests.experiments.compose import run_of
from tests.experiments.studies.test_papers import mmsafeaware


def execute(*overrides: str) -> None:
    run = run_of("+exp=oversensitivity_suite", "draws=20", *overrides)
    run.task(run)


@pytest.mark.long
def test_what_is_at_hand_runs_and_one_page_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import interp.loading

    loads: list[Any] = []
    load = interp.loading.load
    monkeypatch.setattr(interp.loading, "load", lambda config, **more: loads.append(config) or load(config, **more))
    out = tmp_path / "out"
    given = (f"mmsafeaware={mmsafeaware(tmp_path / 'mm')}", f"mssbench={mssbench(tmp_path / 'mss')}")
    execute(*given, f"output_root={out}", "task.answer_tokens=4", "~arms.text_only", "~arms.safety_prompt")
    assert len(loads) == 1
    (suite,) = (out / "oversensitivity_suite").iterdir()
    studies = {name: next((out / f"oversensitivity_suite_{name}").iterdir()) for name in ("mmsafeaware", "mssbench")}
    numbers = json.loads((suite / "suite.json").read_text(encoding="utf-8"))
    assert set(numbers["arms"]) == {"baseline", "vcd_cli", "prompt"}
    metrics = {name: json.loads((folder / "metrics.json").read_text()) for name, folder in studies.items()}
    for arm, shown in numbers["arms"].items():
        assert set(shown) == set(studies)
        refused = metrics["mssbench"]["arms"][arm]["refusal_rate"]
        assert (shown["mssbench"]["benign"], shown["mssbench"]["contrast"]) == (refused["benign"], refused["contrast"])
        accuracy = metrics["mmsafeaware"]["arms"][arm]["accuracy"]
        assert shown["mmsafeaware"]["benign"] == pytest.approx(1 - accuracy["over_safety"])
        assert shown["mmsafeaware"]["contrast"] == accuracy["unsafe"]
    assert metrics["mssbench"]["as_published"]["arms"]["baseline"].keys() == {
        "chat safe",
        "chat unsafe",
        "chat average",
    }
    page = (suite / "suite.html").read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]+report.html)"', page)
    assert [(suite / link).resolve() for link in links] == [(f / "report.html").resolve() for f in studies.values()]
    assert "script-src" not in page
    assert (suite / "suite.svg").stat().st_size > 1000
    printed = capsys.readouterr().out
    clone = "git clone https://github.com/turningpoint-ai/MOSSBench"
    said = (
        f"Left out, because no folder was given: mossbench=<folder> ({clone}), lvlm_safer=<folder>, vscbench=<folder>"
    )
    assert said in printed


@pytest.mark.long
def test_nothing_at_hand_and_a_wrong_folder_are_said_before_anything_is_asked(tmp_path: Path) -> None:
    out = f"output_root={tmp_path / 'out'}"
    with pytest.raises(UserError, match=r"no benchmark to ask; give .*mssbench=<folder>.*guide-judges"):
        execute(out)
    with pytest.raises(UserError, match=r"^lvlm_safer=.*nowhere is not a folder; .*LVLM-SafeR.* set lvlm_safer to"):
        execute(out, f"mssbench={mssbench(tmp_path / 'mss')}", "lvlm_safer=nowhere")
    with pytest.raises(UserError, match=r"task.answer_tokens=0"):
        execute("task.answer_tokens=0")
    with pytest.raises(UserError, match=r"task.benchmarks: 'xstest' is not known; known: mmsafeaware, mossbench"):
        execute("task.benchmarks=[xstest]")
    assert not (tmp_path / "out").exists()


def arm(benign: float | None, harmful: float | None) -> dict[str, Any]:
    interval = [0.1, 0.9]
    return {
        "refusal_rate": {"benign": benign, "contrast": harmful},
        "intervals": {"benign": benign and interval, "contrast": harmful and interval},
        "n": 4, "n_of": 5, "d_prime": 1.0, "pairs": None,
    }  # fmt: skip


def verdicts(safe: float, unsafe: float) -> dict[str, Any]:
    return {
        "accuracy": {"over_safety": safe, "unsafe": unsafe},
        "intervals": {"over_safety": [0.6, 0.9], "unsafe": [0.2, 0.4]},
        "n": 4, "n_of": 4, "d_prime": None, "flip_rate": None,
    }  # fmt: skip


METRICS = {
    "one": {"kind": "refusal", "study": "vcd", "arms": {"baseline": arm(0.2, 0.8), "vcd": arm(0.1, None)}},
    "two": {"kind": "yes_no", "study": "vcd", "arms": {"baseline": verdicts(0.7, 0.3), "$x_1": verdicts(0.9, 0.3)}},
}


def test_safe_cases_called_unsafe_stand_for_refusals() -> None:
    point = next(one for one in suite_page.points(METRICS["two"]) if one.name == "baseline")
    assert (point.benign, point.contrast) == (pytest.approx(0.3), 0.3)
    assert point.benign_interval == pytest.approx((0.1, 0.4))  # turned over
    assert "vcd" not in [one.name for one in suite_page.points(METRICS["one"])]  # no rate of harmful requests


def test_all_panels_have_one_scale_and_a_dot_a_benchmark() -> None:
    panels = suite_page.by_arm(METRICS)
    figure = suite_page.panels_of_arms(panels, list(METRICS))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["baseline", "$x_1"]
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in shown}) == 1
    dots = [[line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "None"] for axes in shown]
    assert dots == [[[[20.0, 80.0]], [[pytest.approx(30.0), 30.0]]], [[[pytest.approx(10.0), 30.0]]]]
    assert "baseline: one benign 20.0%, harmful 80.0%" in suite_page.describe(panels)


def test_the_table_has_a_row_an_arm_also_of_those_that_cannot_be_drawn(tmp_path: Path) -> None:
    table = suite_page.table(METRICS)
    assert [(cells[0].value, cells[1].value) for _, cells in table.rows] == [
        ("one", "baseline"), ("one", "vcd"), ("two", "baseline"), ("two", "$x_1")
    ]  # fmt: skip
    said = suite_page.sentences(METRICS, [])
    assert said[0] == "one: vcd has no rate of benign or of harmful requests; its report says why."
    hostile = "<script>alert(1)</script>"
    suite_page.write(tmp_path, METRICS, model=hostile, reports={"one": tmp_path / "a", "two": tmp_path}, left_out=[])
    assert hostile not in (tmp_path / "suite.html").read_text(encoding="utf-8")
