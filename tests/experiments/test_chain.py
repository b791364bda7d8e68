"""The main job from the command line to transformers: few calls of ours, and those that docs/architecture.md names."""

import re
import sys
import traceback
from pathlib import Path

import pytest
from transformers import GenerationMixin

from experiments.run import main
from tests.conftest import REPOSITORY

PACKAGES = tuple(str(REPOSITORY / name) for name in ("experiments", "interp", "mitigation"))
MOST = 12


def test_from_main_to_generate_there_are_few_frames_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chains: list[list[str]] = []

    def generate(self: GenerationMixin, *_: object, **__: object) -> None:
        frames = traceback.extract_stack()
        begin = max(at for at, frame in enumerate(frames) if frame.name == "main")
        chains.append([frame.name for frame in frames[begin:] if frame.filename.startswith(PACKAGES)])
        raise KeyboardInterrupt

    monkeypatch.setattr(GenerationMixin, "generate", generate)
    monkeypatch.setattr(sys, "argv", ["forestlens", "+exp=vcd_llava", "limit=2", f"output_root={tmp_path}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    (chain,) = chains
    assert len(chain) <= MOST, chain
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(?:\w+\.)*(\w+)` ", page.partition("## The main job")[2], re.MULTILINE)
    assert named[: len(chain)] == chain
