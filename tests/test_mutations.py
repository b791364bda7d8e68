"""The mutations of ``make mutations`` still apply, and what is not caught is said."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.mutations import __main__ as runner
from tests.mutations.mutation import Mutation, Stale, mutations

PATCH = """A sum that is a difference.
tests: tests/test_sums.py
@@
 def add(a, b):
-    return a + b
+    return a - b
"""


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.name)
def test_it_applies_and_its_tests_are_there(mutation: Mutation) -> None:
    for before, _ in mutation.hunks:
        assert mutation.home(REPOSITORY, before)  # raises where the lines are gone
    for test in mutation.tests:
        file, *names = test.split("::")
        assert (REPOSITORY / file).is_file(), file
        assert not names or f"def {names[0]}(" in (REPOSITORY / file).read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "interp").mkdir()
    (tmp_path / "interp" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "sums.patch").write_text(PATCH)
    return tmp_path


def test_lines_in_no_or_several_places_are_refused(checkout: Path) -> None:
    mutation = Mutation.read(checkout / "sums.patch")
    (checkout / "interp" / "more.py").write_text((checkout / "interp" / "sums.py").read_text())
    with pytest.raises(Stale, match=r"more\.py, interp/sums\.py"):
        mutation.apply(checkout)
    for path in (checkout / "interp").iterdir():
        path.unlink()
    with pytest.raises(Stale, match="no file"):
        mutation.apply(checkout)


@pytest.mark.parametrize(
    ("old", "new"),
    [("A sum that is a difference.", ""), ("tests: tests/test_sums.py\n", ""), ("a - b", "a + b"), ("@@", "")],
    ids=["sentence", "tests", "change", "hunk"],
)
def test_a_patch_that_lacks_something_is_refused(checkout: Path, old: str, new: str) -> None:
    (checkout / "sums.patch").write_text(PATCH.replace(old, new))
    with pytest.raises(Stale, match="needs a sentence"):
        Mutation.read(checkout / "sums.patch")


@pytest.mark.parametrize(
    ("whole", "mutated", "ended", "said"),
    [
        (0, 1, 0, "1 of 1 mutations caught"),
        (0, 0, 1, "NOT CAUGHT sums"),
        (0, 2, 1, "EXIT 2"),  # tests that do not even run show nothing
        (1, 1, 1, "without a mutation the tests must pass"),
    ],
)
def test_only_a_failing_test_catches(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whole: int,
    mutated: int,
    ended: int,
    said: str,
) -> None:
    def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
        is_mutated = "a - b" in (root / "interp" / "sums.py").read_text()
        return mutated if is_mutated else whole, "FAILED tests/test_sums.py::test_add"

    mutation = Mutation.read(checkout / "sums.patch")
    monkeypatch.setattr(runner, "mutations", lambda: [mutation])
    monkeypatch.setattr(runner, "copied", lambda to: checkout)
    monkeypatch.setattr(runner, "run_tests", run_tests)
    monkeypatch.setattr(runner, "SLOW_TO_IMPORT", ())
    monkeypatch.setattr("sys.argv", ["mutations", "--jobs", "1"])
    assert runner.main() == ended
    assert said in capsys.readouterr().out
