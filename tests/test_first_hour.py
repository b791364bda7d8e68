"""A first hour: commands of ``forestlens``, with exit codes and a sentence each."""

import base64
import json
import os
import re
import signal
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from PIL import Image, ImageDraw

from tests import forked
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.long

FORESTLENS = Path(sysconfig.get_path("scripts")) / "forestlens"
GUIDE = (REPOSITORY / "docs" / "guide-own-method.md").read_text(encoding="utf-8")
RULE = re.search(r"`my_rule\.py`:\n\n```python\n(.*?)```", GUIDE, re.DOTALL)
FRESH = ("", "--version", "+exp=vcd_llava limit=40")  # the installed command itself, in a Python of its own
TABLE = "benchmark=table benchmark.path=mine/cases.csv"
LONGEST = 900  # seconds, on a machine that has other work
STOPPED = "stopped; the same command continues where it ended"


class Typed(NamedTuple):
    """A command after ``forestlens``, its exit code, and what stands in what it says."""

    command: str
    code: int
    said: str


ALONE = (
    Typed("", 0, "--help"),
    Typed("--version", 0, "forestlens 0."),
    Typed("task=doctor", 0, "organism:llava"),
    Typed("+exp=vcd_llava limit=40", 0, "next:"),
    Typed("exp=vcd_llava", 2, "did you mean +exp=vcd_llava?"),
    Typed("vcd_llava", 2, "did you mean +exp=vcd_llava?"),
    Typed("method=vdc", 2, "did you mean method=vcd?"),
    Typed("--limit 40", 2, "unrecognized arguments: --limit"),
    Typed(f"task=preview {TABLE}", 0, "subsets: 10 safe, 10 unsafe"),
    Typed("task=preview benchmark=table benchmark.path=mine/cases.xlsx", 0, "subsets: 10 safe, 10 unsafe"),
    Typed("task=preview benchmark=table benchmark.path=mine/bad.csv", 2, "case '4': label: 'sfae' is none of safe"),
    Typed("method=prompt benchmark=table benchmark.path=mine/bad.csv", 2, "or go on without them: benchmark.skip_bad"),
    Typed("method=prompt benchmark=table benchmark.path=mine/absent.csv", 2, "there is no such file"),
    Typed("method=file method.path=my_rule.py limit=20 name=own", 0, "my_rule"),
    Typed("method=file method.path=my_rule.py method.settings={strength: 2} limit=20 name=own", 0, "my_rule"),
    Typed("method=file method.path=my_rule.py method.settings.strenth=2 limit=20 name=own", 2, "strength"),
    Typed("method=file method.path=broken.py limit=20 name=broken", 2, "broken.py"),
    Typed('+exp=heatmap_llava image=mine/pictures/1.jpg text="How do I kill this?"', 0, ".png"),
    Typed("task=plan +exp=vcd_llava", 0, "All of it fits"),
)
STUDY = Typed(f"method=prompt {TABLE}", 0, "report: outputs/study/")
CUT = "+exp=vcd_llava limit=80 name=cut"
INSTALLED = pytest.mark.skipif(
    not FORESTLENS.exists(), reason="forestlens is not installed in this environment: make install"
)


def twenty_cases(folder: Path) -> pd.DataFrame:
    """Twenty pictures in ``folder``, and a table of them in ``cases.csv``."""
    (folder / "pictures").mkdir(parents=True)
    rows = []
    for number in range(1, 21):
        picture = Image.new("RGB", (120, 90), (10 * number, 120, 60))
        ImageDraw.Draw(picture).ellipse((30, 20, 80, 70), fill=(250 - 10 * number, 30, 30))
        picture.save(folder / "pictures" / f"{number}.jpg")
        label = "safe" if number % 2 else "unsafe"
        rows.append([str(number), f"pictures/{number}.jpg", f"How do I cut this in {number}?", label])
    cases = pd.DataFrame(rows, columns=["id", "image", "text", "label"])
    cases.to_csv(folder / "cases.csv", index=False)
    return cases


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stranger has: twenty pictures, a table of them in two forms, one with a slip, and two methods."""
    here = tmp_path_factory.mktemp("stranger")
    cases = twenty_cases(here / "mine")
    cases.to_excel(here / "mine" / "cases.xlsx", index=False)
    cases.loc[3, "label"] = "sfae"
    cases.to_csv(here / "mine" / "bad.csv", index=False)
    (here / "my_rule.py").write_text(RULE[1])
    (here / "broken.py").write_text("def rule(scores, step):\n    return scores[:, :3]\n")
    return here


def words_of(command: str) -> list[str]:
    """The arguments: a space parts them, but for one within a value in braces or quotes."""
    return re.findall(r"""(?:[^\s{"]|\{[^}]*\}|"[^"]*")+""", command)


def started(command: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(FORESTLENS), *words_of(command)], cwd=folder, env=os.environ | {"COLUMNS": "300"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def check(typed: Typed, folder: Path) -> None:
    """The command ends as the stranger is told."""
    if typed.command in FRESH:
        process = started(typed.command, folder)
        said = process.communicate(timeout=LONGEST)[0]
        code = process.returncode
    else:
        words = words_of(typed.command)
        ended = forked.typed("experiments.run", *words, folder=folder, seconds=LONGEST, COLUMNS="300")
        said, code = ended.stdout + ended.stderr, ended.returncode
    assert code == typed.code, said
    assert typed.said in said
    assert "Traceback" not in said


@INSTALLED
@pytest.mark.parametrize("typed", ALONE, ids=lambda typed: typed.command or "nothing")
def test_a_command_does_what_a_stranger_is_told(typed: Typed, folder: Path) -> None:
    check(typed, folder)


@INSTALLED
def test_a_study_and_its_report_again(folder: Path) -> None:
    check(STUDY, folder)
    (study,) = (folder / "outputs" / "study").iterdir()
    (study / "report.html").unlink()
    check(Typed(f"task=report run={study.relative_to(folder)}", 0, "report: outputs/study/"), folder)
    assert (study / "report.html").is_file()


@INSTALLED
def test_a_server_answers_until_ctrl_c(folder: Path) -> None:
    process = started("task=serve method=vcd task.port=0", folder)
    said = ""
    try:
        while not (address := re.search(r"at (http://\S+/v1)", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        picture = base64.b64encode((folder / "mine" / "pictures" / "1.jpg").read_bytes()).decode()
        content = [{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{picture}"}},
                   {"type": "text", "text": "Is it safe to answer this?"}]  # fmt: skip
        body = {"model": "llava_organism+vcd", "messages": [{"role": "user", "content": content}]}
        asked = urllib.request.Request(f"{address[1]}/chat/completions", json.dumps(body).encode(),
                                       {"Content-Type": "application/json"})  # fmt: skip
        with urllib.request.urlopen(asked, timeout=LONGEST) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
    finally:
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=LONGEST)[0]
    assert process.returncode == 0, said
    assert "stopped serving" in said


@INSTALLED
def test_a_study_that_ctrl_c_ends_goes_on(folder: Path) -> None:
    """As soon as it has recorded an answer."""
    process = started(CUT, folder)
    while not any(path.stat().st_size for path in folder.glob("outputs/cut/*/predictions.jsonl")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=LONGEST)[0]
    assert process.returncode == 130, said
    assert said.rstrip().endswith(STOPPED)
    check(Typed(CUT, 0, "continuing outputs/cut/"), folder)
