"""The guide for your own pictures, as a reader follows it: 20 pictures, a table, and its commands as they stand."""

import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests import forked
from tests.conftest import REPOSITORY
from tests.test_first_hour import twenty_cases

pytestmark = pytest.mark.long

GUIDE = (REPOSITORY / "docs" / "guide-own-data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^forestlens (.+)$", GUIDE, re.MULTILINE)
HEADER = re.search(r"```csv\n(.+)\n", GUIDE)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder ``mine`` with 20 pictures and a table with the guide's columns."""
    assert list(twenty_cases(tmp_path / "mine").columns) == HEADER[1].split(",")
    return tmp_path


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command as it is typed in ``folder``."""
    return forked.typed("experiments.run", *command.split(), folder=folder, COLUMNS="300")


def test_three_commands_lead_from_twenty_pictures_to_a_report(mine: Path) -> None:
    preview, study, report, paper, _ = COMMANDS  # the last trains: test_vrtuning_own_data
    looked = typed(preview, mine)
    assert looked.returncode == 0, looked.stderr
    for said in ("cases.csv: 20 cases", "labels: 10 safe, 10 unsafe", "clusters: 20", "prompt 3", "Given the image"):
        assert said in looked.stdout
    (sheet,) = (mine / "outputs" / "preview").glob("*/contact_sheet.png")
    assert Image.open(sheet).width > 500
    assert (sheet.parent / "understood.txt").read_text() in looked.stdout
    asked = typed(study, mine)
    assert asked.returncode == 0, asked.stderr
    (page,) = (mine / "outputs" / "study").glob("*/report.html")
    assert "answered at" in asked.stdout
    assert "attack" not in asked.stdout  # its own two labels
    page.unlink()
    again = typed(report.replace("TIME", page.parent.name), mine)
    assert again.returncode == 0, again.stderr
    assert page.is_file()
    published = typed(paper.replace("TIME", page.parent.name), mine)
    assert published.returncode == 0, published.stderr
    assert "path=mine/cases.csv" in (page.parent / "paper" / "reproduce.sh").read_text()
    assert str(mine) not in (page.parent / "paper" / "methods.md").read_text()


def test_the_guide_shows_a_message_as_it_is(mine: Path) -> None:
    path = mine / "mine" / "cases.csv"
    rows = path.read_text().splitlines()
    rows[4] = rows[4].replace("unsafe", "sfae")
    path.write_text("\n".join(rows))
    (mine / "mine" / "pictures" / "8.jpg").unlink()
    refused = typed(COMMANDS[1], mine)
    shown = re.search(r"```\n(error: .+?)```", GUIDE, re.DOTALL)
    assert refused.returncode == 2
    assert refused.stderr.replace(f"{mine}/", "") == shown[1]
    assert not (mine / "outputs").exists()
