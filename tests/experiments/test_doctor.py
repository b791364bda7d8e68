"""``task=doctor``: what it says of what is there, and of what is missing."""

from pathlib import Path

import pytest

from experiments.command_line import doctor
from experiments.command_line.doctor import MISSING, OK, Doctor
from interp.errors import UserError
from tests.experiments.compose import run_of


def test_everything_needed_is_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Doctor()(run_of("task=doctor", f"output_root={tmp_path}/not/yet"))
    said = " ".join(capsys.readouterr().out.split())
    assert "organism:llava: " in said
    assert "Everything needed is here" in said
    assert "Next: forestlens +exp=vcd_llava" in said
    assert not (tmp_path / "not").exists()


def test_a_missing_package_is_named_with_the_line_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = doctor.requires("forestlens") or []
    monkeypatch.setattr(
        doctor, "requires", lambda _: [*known, "no-such-package>=2", "numpy<1", "rich>=1; extra == 'x'"]
    )
    with pytest.raises(UserError, match=r"missing: 1; .* how to get what is missing"):
        Doctor()(run_of("task=doctor"))
    said = " ".join(capsys.readouterr().out.split())
    assert "✗ missing" in said
    assert "pip install 'no-such-package>=2' (not installed), 'numpy<1' (here: " in said


def test_a_check_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_spec(module: str) -> None:
        raise RuntimeError(f"[no] {module}")

    monkeypatch.setattr(doctor, "find_spec", find_spec)
    with pytest.raises(UserError, match="missing: 1"):
        Doctor()(run_of("task=doctor"))
    said = " ".join(capsys.readouterr().out.split())
    assert "could not be checked: RuntimeError: [no] httpx2" in said
    assert "GiB free" in said


def test_the_token_is_never_shown_and_a_model_that_is_not_there_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    findings = list(doctor.model(run_of("task=doctor", "model=llava_1_5_7b", "model.path=no/such-model-here")))
    assert "hf_secret" not in str(findings)
    assert "a token is set" in findings[-1][1]
    assert [state for state, _ in findings] == [MISSING, OK]
