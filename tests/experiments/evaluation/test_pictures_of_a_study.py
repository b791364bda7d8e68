"""What a study makes of pictures: one that the processor refuses, one that a method edits in place."""

from pathlib import Path

import pytest
from PIL import Image

from experiments.evaluation import study
from experiments.evaluation.fitting import examples
from interp.vlm import VLM
from tests import families
from tests.experiments.compose import lines, only_run, run_of

EDITS = """
from PIL import ImageDraw

def ask(prompt):
    ImageDraw.Draw(prompt.image).rectangle((0, 0, 95, 95), fill="red")
    return prompt
"""


def table(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    """A table of cases with pictures of these sizes."""
    rows = ["id,image,text,label"]
    for number, size in enumerate(sizes, 1):
        Image.effect_noise(size, 90).convert("RGB").save(folder / f"{number}.png")
        rows.append(f"{number},{number}.png,Can I eat this?,{'safe' if number % 2 else 'unsafe'}")
    path = folder / "cases.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def read(run: object) -> dict[tuple[str, str], dict[str, object]]:
    return {(record["arm"], record["case"]): record for record in lines(only_run(run))}  # type: ignore[arg-type]


@pytest.mark.long
def test_a_strip_is_a_bad_image_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = table(tmp_path, [(60, 40), (60, 40), (2100, 10), (60, 40)])
    run = run_of(
        "method=prompt", "benchmark=table", f"benchmark.path={path}", f"output_root={tmp_path}/o", "max_new_tokens=2",
    )  # fmt: skip
    vlm = VLM(*families.qwen2_5_vl(), name="qwen", revision="1")
    with study.open_study(run, vlm=vlm) as opened:
        opened.answer_all()
        records = read(run)
        assert len(records) == 8
        for arm in ("baseline", "prompt"):
            assert records[arm, "3"]["status"] == "bad_image"
            assert "2100 × 10" in str(records[arm, "3"]["reason"])
            assert all(records[arm, case]["status"] != "bad_image" for case in "124")
        assert [prompt.key for prompt in examples(opened.samples, vlm.batches.lengths)[0]] == ["1", "2", "4"]


@pytest.mark.long
def test_a_picture_edited_in_place_is_seen_and_reaches_no_other_arm(tmp_path: Path) -> None:
    rule = tmp_path / "cover.py"
    rule.write_text(EDITS)
    path = table(tmp_path, [(96, 96)] * 4)
    common = ["benchmark=table", f"benchmark.path={path}", "max_new_tokens=2"]
    plain = run_of("method=prompt", *common, f"output_root={tmp_path}/plain")
    own = ["method=file", f"method.path={rule}", "+method@arms.prompt=prompt"]
    edited = run_of(*own, *common, f"output_root={tmp_path}/o")
    for run in (plain, edited):
        with study.open_study(run) as opened:
            opened.answer_all()
    before, after = read(plain), read(edited)
    for case in "1234":
        assert after["cover", case]["margin"] != after["baseline", case]["margin"]
        for arm in ("baseline", "prompt"):
            assert after[arm, case]["margin"] == before[arm, case]["margin"]
