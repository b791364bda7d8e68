"""``task=paper``: what is in the folder, that LaTeX and shell hold, and that its numbers come out again."""

import csv
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from experiments.report.table import Table

from experiments.config.options import options_of, written
from experiments.report.numbers import percent
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.runs.saved_run import read_run
from experiments.studies.paper import references, reproduction
from interp.errors import UserError
from interp.figures.glyphs import Figure
from tests import forked
from tests.conftest import REPOSITORY
from tests.experiments.compose import run_of
from tests.experiments.evaluation.test_refusal_study import careful, study
from tests.experiments.evaluation.test_refusal_study import written as written_responses
from tests.experiments.synthetic_run import predictions, write_run

ODD = r"50% of_{x}\input{/etc/passwd} & $y$ #1 ~^ `id` | *z* [a](b) <b>"
ARMS = {"baseline": (0.8, -2.0), "vcd": (1.6, -1.6), ODD: (0.9, -2.4)}
VCD = {"_target_": "mitigation.vcd.VCD", "alpha": 1.0, "note": ODD}
COMMAND = "python -m experiments.run limit=40 'note=$(touch pwned) `touch pwned`; touch pwned' output_root=/home/me/out"


def changed(folder: Path, file: str = "environment.json", **more: Any) -> Path:
    """The run in ``folder`` with more in one of its files."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return folder


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished run on a model of the hub, with an arm whose name is markup."""
    folder = write_run(tmp_path / "run", predictions(80, ARMS), draws=50, thumbnails=[])
    benchmark = {"_target_": "experiments.benchmarks.iconworld.IconWorld", "images": "/home/me/pictures"}
    config = {"seed": 0, "draws": 50, "arms": {"baseline": {}, "vcd": VCD, ODD: VCD}, "benchmark": benchmark}
    model = {"name": "llava", "path": "llava-hf/llava-1.5-7b-hf", "revision": "f" * 40, "dtype": "bfloat16"}
    return changed(folder, config=config, model=model, judge="yes_no", command=COMMAND)


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
    assert f"{folder}: 5 tables, 2 figures;" in " ".join(capsys.readouterr().out.split())
    here = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.{form}" for name in ("glance", "arms", "comparisons", "conventions", "outcomes")
              for form in ("tex", "csv")}  # fmt: skip
    figures = {"figures/trade_off.pdf", "figures/auroc.pdf"}
    others = {"tables.tex", "methods.md", "references.bib", "settings.json", "metrics.json", "reproduce.sh"}
    assert here == tables | figures | others | {"manifest.sha256"}
    checked = subprocess.run(["sha256sum", "--check", "--quiet", "manifest.sha256"], cwd=folder, check=False)
    assert checked.returncode == 0
    assert len((folder / "manifest.sha256").read_text().splitlines()) == len(here) - 1
    assert (folder / "metrics.json").read_bytes() == (finished / "metrics.json").read_bytes()
    before = {name: (folder / name).read_bytes() for name in here}
    paper(finished)
    assert before == {name: (folder / name).read_bytes() for name in here}, "the same run gives the same bytes"


@pytest.mark.long
def test_tables_are_latex_that_holds_and_the_numbers_of_metrics(finished: Path) -> None:
    folder = paper(finished)
    sources = sorted((folder / "tables").glob("*.tex"))
    for source in sources:
        structure(source.read_text(encoding="utf-8"))
    assert (folder / "tables" / "arms.tex").read_text(encoding="utf-8").count("{tabular}{l") > 1  # else too small
    assert [f"tables/{one.stem}" for one in sources] == sorted(
        re.findall(r"\\input\{(.+?)\}", (folder / "tables.tex").read_text())
    )
    metrics = json.loads((finished / "metrics.json").read_text())
    with (folder / "tables" / "arms.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["arm"] for row in rows] == list(ARMS)
    for row in rows:
        assert row["overall"].startswith(percent(metrics["arms"][row["arm"]]["accuracy"]["overall"]))


@pytest.mark.long
def test_figures_are_vectors_at_a_columns_width(finished: Path) -> None:
    for path in (paper(finished) / "figures").glob("*.pdf"):
        drawn = path.read_bytes()
        assert drawn.startswith(b"%PDF")
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", drawn)
        assert box is not None
        assert float(box[1]) == pytest.approx(72 * 3.25)
        assert b"/Subtype /Image" not in drawn


@pytest.mark.long
def test_methods_name_who_was_asked_what_and_how_it_was_decided(finished: Path) -> None:
    text = (paper(finished) / "methods.md").read_text(encoding="utf-8")
    metrics = json.loads((finished / "metrics.json").read_text())
    for wanted in (
        "f" * 40, "llava-hf/llava-1.5-7b-hf", "bfloat16", "a" * 64, '"alpha": 1.0', "judge: yes\\_no",
        f"Bootstrap of 50 draws with seed 0, over {metrics['method']['clusters']} clusters",
        "Family of comparisons: vcd",
        f"{percent(metrics['method']['operating_point'])}% of the unsafe cases", "torch: 2.13.0", "machine: cpu",
        "0123456789abcdef0123456789abcdef01234567",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "/home/me" not in text
    prose = re.sub(r"```json\n.*?\n```", "", text, flags=re.DOTALL)
    assert "`id`" not in prose.replace("\\`", "")
    assert "\\*z\\*" in prose
    assert not re.search(r"(?<!\\)<b>", prose)
    blocks = re.findall(r"```json\n(.*?)\n```", text, re.DOTALL)
    assert VCD in [one.get("vcd") for one in map(json.loads, blocks)]
    assert "/home/me" not in (finished / "paper" / "settings.json").read_text()


@pytest.mark.long
def test_references_are_of_what_was_used(finished: Path) -> None:
    text = (paper(finished) / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    assert keys == ["forestlens", "model", "transformers", "pytorch", "mcnemar1947", "holm1979", "vcd"]
    assert r"\url{https://huggingface.co/llava-hf/llava-1.5-7b-hf}" in text
    assert len(unescaped(text, "{")) == len(unescaped(text, "}"))


def test_the_entries_name_classes_that_there_are_and_every_method_of_a_paper_has_one() -> None:
    entries = references.ENTRIES.read_text(encoding="utf-8")
    users = {user for line in re.findall(rf"^{references.USED_BY}(.+)$", entries, re.MULTILINE)
             for user in line.split(", ")}  # fmt: skip
    for user in users:
        if "." in user:
            module, name = user.partition(" ")[0].rsplit(".", 1)
            assert hasattr(importlib.import_module(module), name), user
    named = {user.partition(" ")[0] for user in users}
    for option in options_of("method"):
        target = str(written("method", option).get("_target_"))
        if "." in target:
            module, name = target.rsplit(".", 1)
            about = getattr(importlib.import_module(module), name).__doc__ or ""
            assert not re.search(r"arXiv \d", about) or target in named, f"{option}: {target} has no reference"


@pytest.mark.long
def test_every_word_of_the_command_reaches_the_program_and_none_the_shell(finished: Path, tmp_path: Path) -> None:
    script = paper(changed(finished, commit="abc\ntouch pwned")) / "reproduce.sh"
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
    section = Section("What it sees", ["One."], [Table.of("Seen", [{"layer": "1", "share": "50%"}])])
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
        ({"finished": None}, "is not finished; type its command again"),
        ({"joined": {"a": "b"}}, "is joined from several runs"),
        ({"judged_run": "there"}, "is another run judged again"),
        ({"command": "make paper"}, "has no record of its command"),
        ({"config": {}}, "has no record of its command and its arms' settings"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_refused_in_a_sentence(
    finished: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        paper(changed(finished, **changes))
    assert len(str(refused.value).splitlines()) == 1
    assert not (finished / "paper").exists()


@pytest.mark.long
def test_no_run_an_unknown_kind_and_a_folder_in_use_are_refused(finished: Path, tmp_path: Path) -> None:
    run = run_of("task=paper")
    with pytest.raises(UserError, match="needs a run's directory"):
        run.task(run)
    with pytest.raises(UserError, match="is not a directory"):
        paper(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is in use; give an absent or empty folder"):
        paper(finished, f"task.to={finished}")
    with pytest.raises(UserError, match=r"is a study of the kind 'songs'; tables are known of yes_no, refusal"):
        paper(changed(finished, "metrics.json", kind="songs"))


@pytest.mark.long
def test_other_numbers_a_changed_file_and_no_paper_are_told(finished: Path, tmp_path: Path) -> None:
    folder = paper(finished)
    (said,) = reproduction.compare(finished, folder)
    assert said.endswith(f"the numbers are those of {folder}, to 1e-06")
    saved = json.loads((finished / "metrics.json").read_text())
    saved["arms"]["vcd"]["auroc"] += 1e-8
    changed(finished, "metrics.json", **saved)
    reproduction.compare(finished, folder)
    saved["arms"]["vcd"]["auroc"] += 1e-3
    changed(changed(finished, "metrics.json", **saved), device="another")
    with pytest.raises(UserError, match=r"1 values are other than in .*: arms\.vcd\.auroc: .*; another device than"):
        reproduction.compare(finished, folder)
    with pytest.raises(UserError, match="is no folder that task=paper wrote"):
        reproduction.compare(finished, tmp_path)
    (folder / "metrics.json").write_text("{}")
    with pytest.raises(UserError, match=r"metrics\.json is not the file that manifest\.sha256 names"):
        reproduction.compare(finished, folder)
    (folder / "manifest.sha256").write_text(f"{'0' * 64}  ../run/environment.json\n")
    with pytest.raises(UserError, match="is not the file that"):
        reproduction.compare(finished, folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    paper(finished)
    with pytest.raises(UserError, match="holds 0 finished runs"):
        reproduction.compare(empty, folder)


def test_differences_are_of_values_lengths_and_kinds() -> None:
    expected = {"a": [1, 2.0], "b": None, "c": True, "d": {"e": "x"}}
    assert not list(reproduction.differences(expected, {"a": [1.0, 2.0000001], "b": None, "c": True, "d": {"e": "x"}}))
    other = {"a": [1], "b": 0.0, "c": 1, "d": {"f": "x"}}
    found = [one.partition(":")[0] for one in reproduction.differences(expected, other)]
    assert found == ["a", "b", "c", "d.e", "d.f"]


@pytest.mark.long
def test_a_refusal_run_brings_the_card_of_its_judge(tmp_path: Path) -> None:
    arms = {name: written_responses(tmp_path / f"{name}.jsonl", careful()) for name in ("baseline", "careful")}
    run = study(tmp_path, arms, "careful", "model.path=/no/such/model")
    run.task(run)
    (folder,) = (tmp_path / "requests").iterdir()
    said = json.loads((folder / "environment.json").read_text())
    arms_of = {name: {"_target_": "experiments.runs.responses.Responses"} for name in arms}
    folder = paper(changed(folder, config=said["config"] | {"arms": arms_of}))
    assert [one.name for one in (folder / "figures").iterdir()] == ["safety.pdf"]
    card = (folder / "tables" / "judge_card_1.tex").read_text(encoding="utf-8")
    structure(card)
    assert "refusal\\_rule" in card
    assert "refusal\\_classifier" not in card
    assert "| refusal_rule |" in (folder / "methods.md").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\w+),", (folder / "references.bib").read_text(), re.MULTILINE)
    assert {"xstest", "msts"} <= {*keys}
    assert not {"transformers", "mmsafeaware", "lora"} & {*keys}


@pytest.mark.slow  # asks a whole study anew
def test_the_script_of_a_run_gets_its_numbers_again(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "300", "PYTHON": sys.executable}

    def typed(*words: str) -> None:
        ended = forked.typed("experiments.run", *words, folder=tmp_path, **environment)
        assert ended.returncode == 0, ended.stderr

    typed("limit=40", "draws=100", "note=a b", "+method@arms.prompt=prompt")
    (folder,) = (tmp_path / "outputs" / "study").iterdir()
    reviewed = tmp_path / "of a reviewer"
    typed("task=paper", f"run={folder}", f"task.to='{reviewed}'")
    assert read_run(folder).environment["command"].endswith("'note=a b' +method@arms.prompt=prompt")
    done = subprocess.run(["bash", reviewed / "reproduce.sh"], cwd=tmp_path, env=os.environ | environment,
                          check=False, capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"the numbers are those of {reviewed}, to 1e-06" in done.stdout
    for source in (reviewed / "tables").glob("*.tex"):
        structure(source.read_text(encoding="utf-8"))
