"""``task=doctor``: what it finds, and what it says of what is not there."""

from pathlib import Path

import pytest

from experiments.command_line import doctor
from experiments.command_line.doctor import Doctor, State
from interp.errors import UserError
from tests.experiments.compose import run_of


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the two checks that take seconds."""
    monkeypatch.setattr(doctor, "hub", lambda run: iter(()))
    monkeypatch.setattr(doctor, "bundled_model", lambda: iter(()))


def test_the_bundled_model_answers_as_it_should() -> None:
    (found,) = doctor.bundled_model()
    assert found.state is State.OK, found.detail
    assert "4 answers of the bundled model on" in found.detail


def test_a_machine_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(doctor.KNOWN))
    monkeypatch.setitem(doctor.KNOWN, case, doctor.KNOWN[case] + 0.1)
    (found,) = doctor.bundled_model()
    assert found.state is State.MISSING
    assert "off by 0.1" in found.detail


def test_everything_needed_is_here(alone: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Doctor()(run_of("task=doctor", f"output_root={tmp_path}/not/yet"))
    said = " ".join(capsys.readouterr().out.split())
    assert "Everything needed is here" in said
    assert "Next: forestlens +exp=vcd_llava" in said
    assert not (tmp_path / "not").exists()


def test_a_missing_package_is_named_with_the_line_that_brings_it(
    alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = doctor.requires(doctor.DISTRIBUTION) or []
    monkeypatch.setattr(
        doctor, "requires", lambda _: [*known, "no-such-package>=2", "numpy<1", "rich>=1; extra == 'x'"]
    )
    with pytest.raises(UserError, match=r"1 thing is missing \(packages\)"):
        Doctor()(run_of("task=doctor"))
    said = " ".join(capsys.readouterr().out.split())
    assert "✗ missing" in said
    assert "pip install 'no-such-package>=2' (not installed), 'numpy<1' (here: " in said


def test_the_token_is_never_shown_and_an_unreachable_hub_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = list(doctor.hub(run_of("task=doctor", "model=llava_1_5_7b", "model.path=no/such-model-here")))
    assert "hf_secret" not in str(found)
    assert "a token is set" in found[-1].detail
    assert found[0].state is State.NOTE
