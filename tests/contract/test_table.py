"""The table is made of findings alone, and a finding against it is noticed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.contract.table import (
    CAPABILITIES,
    COMMITTED,
    Found,
    contradiction,
    differences,
    drawn,
    merged,
    table,
    untested,
)

WORKS = Found("llava", ("generate", "score"), "a.py::b[llava]", passed=True)
REFUSED = Found("idefics", ("maps",), "a.py::c[idefics]", passed=True, not_applicable="no image tokens")
VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0"}


def test_a_capability_works_if_all_its_tests_say_so() -> None:
    limited = replace(WORKS, test="a.py::d[llava]", capabilities=("generate",), limit="with an image alone")
    failed = replace(WORKS, test="a.py::e[llava]", passed=False, error="ValueError: x")
    cells = table([WORKS, limited, REFUSED], VERSIONS)["families"]["llava"]["capabilities"]
    assert list(cells) == ["generate", "score"]
    assert cells["generate"] == {"works": True, "reason": "with an image alone", "test": "a.py::d[llava]"}
    assert cells["score"] == {"works": True, "reason": None, "test": "a.py::b[llava]"}
    cells = table([limited, WORKS, failed], VERSIONS)["families"]["llava"]["capabilities"]
    assert cells["generate"] == {"works": False, "reason": "fails: ValueError: x", "test": "a.py::e[llava]"}


def test_contradictions_of_one_test() -> None:
    committed = table([WORKS, REFUSED], VERSIONS)
    assert contradiction(WORKS, committed) == contradiction(REFUSED, committed) == ""
    assert "works there, and is refused here: no" in contradiction(replace(WORKS, not_applicable="no"), committed)
    assert "is refused there, and works here" in contradiction(replace(REFUSED, not_applicable=""), committed)
    assert contradiction(replace(REFUSED, not_applicable="", test="another"), committed) == ""
    assert contradiction(replace(WORKS, family="new"), committed) == "new generate is not in it"


def test_a_table_made_in_pieces_is_the_whole() -> None:
    whole, refused = table([WORKS, REFUSED], VERSIONS), replace(WORKS, not_applicable="no")
    assert merged(table([WORKS], VERSIONS), table([REFUSED], VERSIONS)) == whole
    assert merged(table([WORKS], VERSIONS), table([refused, REFUSED], VERSIONS)) == whole
    assert merged(table([replace(WORKS, capabilities=("score",))], VERSIONS), whole) == whole  # a cell of a row
    assert list(merged(table([REFUSED], VERSIONS), table([WORKS], VERSIONS))["families"]) == ["idefics", "llava"]


PIECES = """
import pytest
@pytest.mark.contract("generate")
@pytest.mark.parametrize("family", ["llava", "idefics"])
def test_generate(family): pass
def test_another(): raise AssertionError
"""


def asked(folder: Path, *options: str, pieces: str = PIECES) -> tuple[int, str]:
    """The exit code and the output of a run of ``pieces``."""
    (folder / "test_pieces.py").write_text(pieces)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.contract.plugin", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "--rootdir=.", "-m", "contract", *options, "test_pieces.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_a_check_fails_where_the_committed_table_is_another_and_writes_nothing(tmp_path: Path) -> None:
    before = COMMITTED.read_text()
    code, said = asked(tmp_path, "--contract-check", "-k", "llava")
    assert (code, "0 cells differ" in said) == (0, True), said
    limited = PIECES.replace("idefics", "instructblip")  # which answers with an image alone, says the table
    code, said = asked(tmp_path, "--contract-check", "-k", "instructblip", pieces=limited)
    assert (code, "instructblip generate: works (" in said) == (1, True), said
    code, said = asked(tmp_path, "--contract-check")
    assert (code, "llava score: no test of it ran" in said) == (1, True), said
    assert COMMITTED.read_text() == before
    assert [path.name for path in tmp_path.glob("*.json")] == []


@pytest.mark.long
def test_cells_that_are_asked_alone_are_written_alone(tmp_path: Path) -> None:
    written = tmp_path / "own.json"
    for families, rows in (("llava", ["llava"]), ("idefics", ["idefics", "llava"])):
        assert "1 passed" in asked(tmp_path, "-k", families, "--contract-json=own.json")[1]
        assert list(json.loads(written.read_text())["families"]) == rows


def test_differences_of_two_tables() -> None:
    one, other = table([WORKS, REFUSED], VERSIONS), table([replace(WORKS, not_applicable="no")], VERSIONS)
    assert differences(one, one) == []
    assert differences(other, one) == ["llava generate: works → does not (no)", "llava score: works → does not (no)"]
    lines = drawn(one)
    assert lines[0].split() == list(CAPABILITIES)
    assert lines[1].split()[:2] == ["idefics", "?"]
    assert "−" in lines[1]
    assert "+" in lines[2]


def test_cells_that_no_test_was_about() -> None:
    whole = table([WORKS, REFUSED], VERSIONS)
    assert untested(whole, whole) == []
    assert untested(table([replace(WORKS, capabilities=("score",))], VERSIONS), whole) == [
        "idefics maps: no test of it ran",
        "llava generate: no test of it ran",
    ]
