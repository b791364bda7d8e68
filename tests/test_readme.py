"""The README's example of contrastive decoding runs, and gives what it says."""

import doctest
import os
import re

import pytest

from tests.conftest import REPOSITORY


def test_three_lines_of_contrastive_decoding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setitem(os.environ, "TQDM_DISABLE", "1")
    (block,) = re.findall(r"```pycon\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    example = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
    failed, tried = doctest.DocTestRunner(verbose=False).run(example)
    assert (failed, tried) == (0, 13), capsys.readouterr().out
