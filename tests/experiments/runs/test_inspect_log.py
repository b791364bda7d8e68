"""Answers in logs of Inspect, read as an arm of a study; with a stand-in of inspect_ai, which CI does not install."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.runs.inspect_log import read_answers
from experiments.runs.responses import Responses
from interp.errors import UserError


def sample(identity: Any, completion: str = "Yes.", *, error: str | None = None, epoch: int = 1) -> SimpleNamespace:
    return SimpleNamespace(id=identity, epoch=epoch, error=error, output=SimpleNamespace(completion=completion))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that makes inspect_ai find these samples in a file."""
    file = tmp_path / "vcd.eval"
    file.touch()

    def put(*samples: SimpleNamespace) -> Path:
        package, log = ModuleType("inspect_ai"), ModuleType("inspect_ai.log")
        log.read_eval_log = lambda path: SimpleNamespace(samples=list(samples))  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "inspect_ai", package)
        monkeypatch.setitem(sys.modules, "inspect_ai.log", log)
        return file

    return put


def test_a_log_is_read_as_responses(logged: Any) -> None:
    path = logged(sample("a"), sample(2, "No."), sample("c", error="lost"))
    assert read_answers(path) == [
        {"id": "a", "response": "Yes."},
        {"id": "2", "response": "No."},
        {"id": "c", "response": None},
    ]
    assert Responses(str(path)).name == "vcd"


def test_several_epochs_are_refused(logged: Any) -> None:
    with pytest.raises(UserError, match="one answer a case"):
        read_answers(logged(sample("a"), sample("a", epoch=2)))


def test_without_inspect_ai_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    file = tmp_path / "x.eval"
    file.touch()
    with pytest.raises(UserError, match=r"pip install '\.\[inspect\]'"):
        Responses(str(file)).check(IconWorld().load().samples[:1])


def test_a_file_that_is_no_log_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="inspect_ai is not installed; it does not fit next to constraints.txt")
    file = tmp_path / "x.eval"
    file.write_text("no log")
    with pytest.raises(UserError, match="is no log of Inspect"):
        read_answers(file)
