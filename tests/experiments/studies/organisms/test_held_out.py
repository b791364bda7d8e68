"""What the second organism's alignment leaves out."""

import subprocess
import sys

from experiments.studies.organisms.held_out import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES, held_out_pairs


def test_pairs_are_left_out_besides_templates_and_things() -> None:
    assert held_out_pairs()
    for template, thing in held_out_pairs():
        assert template not in HELD_OUT_TEMPLATES
        assert thing.removeprefix("no-") not in HELD_OUT_CONCEPTS


def test_what_is_left_out_needs_no_torch() -> None:
    code = "import sys, experiments.studies.organisms.held_out; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
