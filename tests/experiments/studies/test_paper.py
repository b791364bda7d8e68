"""``task=paper``: what is in the folder, that LaTeX and shell hold, and that its numbers come out again."""

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.config.run import options_of, written
from experiments.metrics.results import evaluate
from experiments.report.saved_run import read_run
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.tables import percent, table
from experiments.runs.results_table import Results, read_results
from experiments.studies.paper import ENTRIES, USED_BY, compare, split
from interp.errors import UserError
from interp.figures.glyphs import Figure
from tests import forked
from tests.conftest import REPOSITORY
from tests.experiments import refused
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import environment, predictions, with_environment, write_records, write_run
from tests.snapshots import check

ODD = r"50% of_{x}\input{/etc/passwd} & $y$ #1 ~^ `id` | *z* [a](b) <b>"
ARMS = {"baseline": (0.8, -2.0), "vcd": (1.6, -1.6), ODD: (0.9, -2.4)}
VCD = {"_target_": "mitigation.vcd.VCD", "alpha": 1.0, "note": ODD}
COMMAND = "python -m experiments.run limit=40 'note=$(touch pwned) `touch pwned`; touch pwned' output_root=/home/me/out"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished run on a model of the hub, with an arm whose name is markup."""
    folder = write_run(tmp_path / "run", predictions(80, ARMS), draws=50, thumbnails=[])
    benchmark = {"_target_": "experiments.benchmarks.iconworld.IconWorld", "images": "/home/me/pictures"}
    config = {"seed": 0, "draws": 50, "arms": {"baseline": {}, "vcd": VCD, ODD: VCD}, "benchmark": benchmark}
    model = {"name": "llava", "path": "llava-hf/llava-1.5-7b-hf", "revision": "f" * 40, "dtype": "bfloat16"}
    return with_environment(folder, config=config, model=model, judge="yes_no", command=COMMAND)


def paper(folder: Path, *overrides: str) -> Path:
    run = run_of("task=paper", f"run={folder}", *overrides)
    run.task(run)
    return folder / "paper"


def unescaped(text: str, sign: str) -> list[str]:
    return re.findall(rf"(?<!\\)(?:\\\\)*{re.escape(sign)}", text)


def structure(source: str) -> None:
    """Environments close in order, braces balance, every row has the columns that are declared, no sign is bare."""
    open_ones: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", source):
        if kind == "begin":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert not open_ones
    assert len(unescaped(source, "{")) == len(unescaped(source, "}"))
    assert not re.search(r"\\(?!textbackslash)input", source)
    bodies = re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", source, re.DOTALL)
    assert bodies
    for columns, body in bodies:
        rows = re.findall(r"^(.*) \\\\$", body, re.MULTILINE)
        assert len(rows) >= 2
        for row in rows:
            assert len(unescaped(row, "&")) == len(columns) - 1, row
        assert re.search(r"\\toprule.*\\midrule.*\\bottomrule", body, re.DOTALL)
        for sign in "#_^~%":
            assert not unescaped(body, sign), sign
        assert len(unescaped(body, "$")) % 2 == 0


@pytest.mark.long
def test_everything_is_there_and_hashed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = paper(finished)
    assert f"{folder}: 6 tables, 2 figures;" in " ".join(capsys.readouterr().out.split())
    here = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    names = ("glance", "levels", "differences", "conventions", "outcomes", "by_scenario")
    tables = {f"tables/{name}.{form}" for name in names for form in ("tex", "csv")}
    figures = {"figures/safety.pdf", "figures/auroc.pdf"}
    others = {"tables.tex", "methods.md", "references.bib", "settings.json", "results.csv", "reproduce.sh"}
    assert here == tables | figures | others | {"manifest.sha256"}
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "manifest.sha256"], cwd=folder, check=False)
    assert checked.returncode == 0
    assert len((folder / "manifest.sha256").read_text().splitlines()) == len(here) - 1
    assert (folder / "results.csv").read_bytes() == (finished / "results.csv").read_bytes()
    before = {name: (folder / name).read_bytes() for name in here}
    paper(finished)
    assert before == {name: (folder / name).read_bytes() for name in here}, "the same run gives the same bytes"


@pytest.mark.long
def test_tables_are_latex_that_holds_and_the_numbers_of_metrics(finished: Path) -> None:
    folder = paper(finished)
    sources = sorted((folder / "tables").glob("*.tex"))
    for source in sources:
        structure(source.read_text(encoding="utf-8"))
    assert (folder / "tables" / "levels.tex").read_text(encoding="utf-8").count("{tabular}{l") > 1  # else too small
    assert [f"tables/{one.stem}" for one in sources] == sorted(
        re.findall(r"\\input\{(.+?)\}", (folder / "tables.tex").read_text())
    )
    results = read_results(finished)
    with (folder / "tables" / "levels.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["arm"] for row in rows] == list(ARMS)
    for row in rows:
        accuracy = results.get(row["arm"], "accuracy")
        assert row["accuracy"].startswith(percent(accuracy.value))


def test_a_wide_table_becomes_parts_that_each_begin_with_the_first_column() -> None:
    frame = table([dict.fromkeys("abcdef", "x" * 30)])
    parts = split(frame, wide=100)
    assert [list(part.columns) for part in parts] == [["a", "b", "c"], ["a", "d", "e"], ["a", "f"]]
    assert [list(part.columns) for part in split(frame[["a", "b"]])] == [["a", "b"]]


@pytest.mark.long
def test_methods_and_references_name_what_was_used_and_hold_no_folder_and_no_markup_of_a_run(finished: Path) -> None:
    folder = paper(finished)
    text, references = ((folder / name).read_text(encoding="utf-8") for name in ("methods.md", "references.bib"))
    assert "/home/me" not in text + (folder / "settings.json").read_text()
    prose = re.sub(r"```json\n.*?\n```", "", text, flags=re.DOTALL)
    assert "`id`" not in prose.replace("\\`", "")
    assert not re.search(r"(?<!\\)<b>", prose)
    assert len(unescaped(references, "{")) == len(unescaped(references, "}"))
    check(Path(__file__).with_name("snapshots") / "paper.txt", text + references)


def test_the_entries_name_classes_that_there_are_and_every_method_of_a_paper_has_one() -> None:
    entries = ENTRIES.read_text(encoding="utf-8")
    users = {user for line in re.findall(rf"^{USED_BY}(.+)$", entries, re.MULTILINE)
             for user in line.split(", ")}  # fmt: skip
    for user in users:
        if "." in user:
            module, name = user.partition(" ")[0].rsplit(".", 1)
            assert hasattr(importlib.import_module(module), name), user
    named = {user.partition(" ")[0] for user in users}
    for option in options_of("method"):
        target = str(written()[f"method/{option}"].get("_target_"))
        if "." in target:
            module, name = target.rsplit(".", 1)
            about = getattr(importlib.import_module(module), name).__doc__ or ""
            assert not re.search(r"arXiv \d", about) or target in named, f"{option}: {target} has no reference"


@pytest.mark.long
def test_every_word_of_the_command_reaches_the_program_and_none_the_shell(finished: Path, tmp_path: Path) -> None:
    script = paper(with_environment(finished, commit="abc\ntouch pwned")) / "reproduce.sh"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\nprintf "%s\\0" "$@" "" >> {tmp_path}/words\n')
    python.chmod(0o755)
    done = subprocess.run(["bash", script], cwd=tmp_path, env=os.environ | {"PYTHON": str(python)}, check=False)
    assert done.returncode == 0
    first, second, _ = (tmp_path / "words").read_text().split("\0\0")
    words = first.split("\0")
    assert words[:4] == ["-m", "experiments.run", "limit=40", "note=$(touch pwned) `touch pwned`; touch pwned"]
    assert words[4] == f"model.revision={'f' * 40}"
    assert words[5].startswith("output_root='/")
    assert second.split("\0")[2:] == ["task=paper", f"run={words[5][12:]}", f"task.against='{script.parent}'"]
    assert not list(tmp_path.rglob("*pwned*"))


@pytest.mark.long
def test_a_sections_table_and_figure_come_along_but_none_from_outside(finished: Path, tmp_path: Path) -> None:
    section = Section("What it sees", ["One."], [table([{"layer": "1", "share": "50%"}], title="Seen")])
    write_section(
        finished, "seen", section, {"inside": SectionFigure(Figure(), "a"), "outside": SectionFigure(Figure(), "b")}
    )
    secret = tmp_path / "secret.svg"
    secret.write_text("secret")
    (finished / "figures" / "outside.svg").unlink()
    (finished / "figures" / "outside.svg").symlink_to(secret)
    folder = paper(finished)
    assert (folder / "figures" / "inside.svg").read_bytes() == (finished / "figures" / "inside.svg").read_bytes()
    assert not (folder / "figures" / "outside.svg").exists()
    assert "50\\%" in (folder / "tables" / "seen_1.tex").read_text()
    assert not list((folder / "tables").glob("a*b*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finished": None}, "is not finished; run its command again"),
        ({"command": "make paper"}, "has no record of its command"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_refused_in_a_sentence(
    finished: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        paper(with_environment(finished, **changes))
    assert len(str(refused.value).splitlines()) == 1
    assert not (finished / "paper").exists()


def moved(results: Results, by: float) -> Results:
    """The same rows with another AUROC of vcd."""
    return Results(
        row._replace(value=(row.value or 0) + by) if row[1:4] == ("vcd", "", "auroc") else row for row in results
    )


@pytest.mark.long
def test_other_numbers_a_changed_file_and_no_paper_are_told(finished: Path, tmp_path: Path) -> None:
    folder, results = paper(finished), read_results(finished)
    (said,) = compare(finished, folder)
    assert said.endswith(f"all {len(results)} rows are those of {folder}, to 1e-06")
    moved(results, 1e-8).write(finished)
    compare(finished, folder)
    moved(results, 1e-3).write(finished)
    with_environment(finished, device="another")
    with pytest.raises(UserError, match=r"1 rows differ from .*: vcd auroc: value .*; another device than"):
        compare(finished, folder)
    with pytest.raises(UserError, match="is no folder that task=paper wrote"):
        compare(finished, tmp_path)
    (folder / "results.csv").write_text("")
    with pytest.raises(UserError, match=r"results\.csv has another hash than in manifest\.sha256"):
        compare(finished, folder)
    (folder / "manifest.sha256").write_text(f"{'0' * 64}  ../run/environment.json\n")
    with pytest.raises(UserError, match="has another hash than in"):
        compare(finished, folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    paper(finished)
    with pytest.raises(UserError, match="has 0 finished runs"):
        compare(empty, folder)


@pytest.mark.long
def test_a_missing_row_and_the_analysis_that_failed_are_named(finished: Path) -> None:
    folder, results = shutil.copytree(paper(finished), finished.parent / "before"), read_results(finished)
    Results(row for row in results if row.quantity != "auroc").write(finished)
    (finished / "missing.json").write_text(json.dumps({"ranks": {"sentence": "AUROC was not measured: no memory"}}))
    with pytest.raises(UserError, match=r"baseline auroc is missing.*AUROC was not measured: no memory"):
        compare(finished, folder)
    methods = (paper(finished) / "methods.md").read_text()
    assert "## What is missing\n\n- AUROC was not measured: no memory\n" in methods


@pytest.mark.long
def test_a_refusal_run_names_its_judge_and_the_error_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    rows = refused.records("b" * 24 + "c" * 24, {"baseline": "rrc" * 8 + "r" * 24, "vcd": "rcc" * 8 + "r" * 24})
    evaluation = evaluate(pd.DataFrame(rows), "refusal", seed=0, draws=50)
    error = {"judge": "refusal_rule", "sensitivity": 0.91, "specificity": 0.97, "positives": 80, "negatives": 90}
    (folder / "metrics.json").write_text(json.dumps(evaluation.design | {"corrected": error | {"unstable": ""}}))
    write_records(folder, rows)
    evaluation.results.write(folder)
    made = {"judge": "refusal_rule", "config": {"arms": {"baseline": {}, "vcd": VCD}}, "model": None}
    (folder / "environment.json").write_text(json.dumps(environment("requests", n=48) | made))
    made_folder = paper(folder)
    assert [drawn.name for drawn in (made_folder / "figures").iterdir()] == ["safety.pdf"]
    structure((made_folder / "tables" / "levels.tex").read_text(encoding="utf-8"))
    text = (made_folder / "methods.md").read_text(encoding="utf-8")
    assert "- judge: refusal\\_rule" in text
    assert '"sensitivity": 0.91' in text
    keys = re.findall(r"^@\w+\{(\w+),", (made_folder / "references.bib").read_text(), re.MULTILINE)
    assert {"xstest", "msts"} <= {*keys}
    assert not {"transformers", "mmsafeaware", "lora"} & {*keys}


@pytest.mark.slow  # asks a whole study anew
def test_the_script_of_a_run_gets_its_numbers_again(tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "300", "PYTHON": sys.executable}

    def typed(*words: str) -> None:
        ended = forked.typed("experiments.run", *words, folder=tmp_path, **variables)
        assert ended.returncode == 0, ended.stderr

    typed("limit=40", "draws=100", "note=a b", "+method@arms.prompt=prompt")
    (folder,) = (tmp_path / "outputs" / "study").iterdir()
    typed("task=paper", f"run={folder}")
    reviewed = shutil.copytree(folder / "paper", tmp_path / "of a reviewer")
    assert read_run(folder).environment["command"].endswith("'note=a b' +method@arms.prompt=prompt")
    done = subprocess.run(["bash", reviewed / "reproduce.sh"], cwd=tmp_path, env=os.environ | variables,
                          check=False, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"rows are those of {reviewed}, to 1e-06" in done.stdout
    for source in (reviewed / "tables").glob("*.tex"):
        structure(source.read_text(encoding="utf-8"))
