"""The main job from the command line to transformers: few calls of ours, and those that docs/architecture.md names."""

import re
import sys
import traceback
from itertools import groupby
from pathlib import Path

import pytest
from transformers import GenerationMixin

from experiments.run import main
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.long

PACKAGES = tuple(str(REPOSITORY / name) for name in ("experiments", "interp", "mitigation"))
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The main job")[2]
MOST = 12


def frames(root: Path, monkeypatch: pytest.MonkeyPatch, *, below: str) -> list[traceback.FrameSummary]:
    """Our frames from ``main`` to the first call of transformers' generate that comes from the file ``below``."""
    chains: list[list[traceback.FrameSummary]] = []
    generate = GenerationMixin.generate

    def stopped(self: GenerationMixin, *args: object, **options: object) -> object:
        stack = traceback.extract_stack()
        begin = max(at for at, frame in enumerate(stack) if frame.name == "main")
        ours = [frame for frame in stack[begin:] if frame.filename.startswith(PACKAGES)]
        if not any(frame.filename.endswith(below) for frame in ours):
            return generate(self, *args, **options)
        chains.append(ours)
        raise KeyboardInterrupt

    monkeypatch.setattr(GenerationMixin, "generate", stopped)
    monkeypatch.setattr(sys, "argv", ["forestlens", "+exp=vcd_llava", "limit=2", f"output_root={root}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    (chain,) = chains
    return chain


def test_from_main_to_generate_there_are_few_frames_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [frame.name for frame in frames(tmp_path, monkeypatch, below="mitigation/method.py")]
    assert len(chain) <= MOST, chain
    named = re.findall(r"^\| `(?:\w+\.)*(\w+)` ", PAGE, re.MULTILINE)
    assert named[: len(chain)] == chain


def test_from_run_to_generate_the_arm_of_vcd_passes_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = frames(tmp_path, monkeypatch, below="mitigation/vcd.py")
    begin = next(at for at, frame in enumerate(chain) if frame.filename.endswith("evaluation/study.py"))
    files = [Path(frame.filename).relative_to(REPOSITORY).as_posix() for frame in chain[begin:]]
    stays = [file for file, _ in groupby(files)]
    said = re.search(r"Below VCD the way from `run` is (.*)\.", PAGE)
    assert re.findall(r"`(.+?)`", said[1]) == stays
    assert (len(stays), len(set(stays))) == (7, 6)  # one return: answer.py halves a batch where memory runs out
