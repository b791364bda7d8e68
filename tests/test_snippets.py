"""The examples of README and guides (```pycon) run, and give what they say."""

import doctest
import os
import re

import pytest

from tests.conftest import REPOSITORY

EXAMPLES = re.compile(r"```pycon\n(.*?)```", re.DOTALL)
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
WITH_EXAMPLES = [str(page.relative_to(REPOSITORY)) for page in PAGES if EXAMPLES.search(page.read_text("utf-8"))]


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_give_what_they_say(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setitem(os.environ, "TQDM_DISABLE", "1")
    for block in EXAMPLES.findall((REPOSITORY / page).read_text(encoding="utf-8")):
        example = doctest.DocTestParser().get_doctest(block, {}, page, page, 0)
        assert example.examples
        assert doctest.DocTestRunner(verbose=False).run(example).failed == 0, capsys.readouterr().out


def test_readme_and_the_page_on_contrastive_decoding_have_examples() -> None:
    assert {"README.md", "docs/guide-mitigations.md"} <= set(WITH_EXAMPLES)
