"""What was removed says so in one sentence, and names what works today."""

import re

import pytest

from experiments.command_line.removed import REMOVED, removed_feature
from experiments.config import options_of
from experiments.run import main


@pytest.mark.parametrize("typed", REMOVED)
def test_no_removed_feature_is_there_and_its_replacement_is(typed: str) -> None:
    group, _, name = typed.lstrip("+").partition("=")
    assert not name or name not in options_of(group)
    for group, name in re.findall(r"\b(exp|task|method|benchmark)=(\w+)", REMOVED[typed]):
        assert name in options_of(group), typed
    sentence = removed_feature(["limit=2", f"{typed}=x" if "=" not in typed else typed])
    assert sentence == f"{typed} was removed. {REMOVED[typed]}"
    assert len(sentence.split()) <= 30


def test_an_arm_of_a_removed_method_is_told_too() -> None:
    assert "method=distilled was removed" in str(removed_feature(["+method@arms.a=distilled"]))
    assert removed_feature(["task=study", "method=vcd", "+exp=vcd_llava"]) is None


def test_the_command_ends_with_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["forestlens", "task=languages"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "error: task=languages was removed." in capsys.readouterr().err
