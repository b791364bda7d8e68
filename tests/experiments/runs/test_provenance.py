"""The commit that a run's files name: git's own, or that of an archive."""

import re
import subprocess
import tarfile
from io import BytesIO

import pytest

from experiments.runs import provenance
from tests.conftest import REPOSITORY

FILE = "experiments/runs/provenance.py"


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no checkout")
def test_an_archive_has_its_commit() -> None:
    made = subprocess.run(["git", "archive", "HEAD", FILE], cwd=REPOSITORY, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(made)) as archive:
        member = archive.extractfile(FILE)
        assert member is not None
        assert re.search(r'^ARCHIVED = "[0-9a-f]{40}"', member.read().decode(), re.MULTILINE)


@pytest.mark.parametrize(("archived", "said"), [("$" + "Format:%H$", "unknown"), ("c" * 40, "c" * 40)])
def test_without_git_the_commit_is_the_archives(archived: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_git", lambda *_: None)
    monkeypatch.setattr(provenance, "ARCHIVED", archived)
    assert provenance.commit() == said
    assert provenance.machine(None)["commit"] == (None if said == "unknown" else said)
