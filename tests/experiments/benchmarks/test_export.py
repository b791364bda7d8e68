import base64
import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from experiments.benchmarks.export import export_mmsafeaware, export_vlmevalkit
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image, pixel_digest
from experiments.benchmarks.mmsafeaware import MMSafeAware
from experiments.types import Sample, Subset
from interp.errors import UserError
from tests.experiments.benchmarks.test_images import noise
from tests.experiments.compose import run_of


@dataclass(frozen=True)
class Drawn:
    seed: int

    def render(self) -> Image.Image:
        return noise(self.seed)


def case(number: int, subset: Subset, wrapper: str = "", text: str = "") -> Sample:
    return Sample(
        id=f"case-{number}",
        subset=subset,
        scenario="anything",
        gold="yes" if subset in ("over_safety", "control") else "no",
        text=text or f"Sentence {number}?",
        prompt="asked in other words",
        image=Drawn(number),
        cluster=f"cluster-{number}",
        pair=f"pair-{number}" if number % 2 else None,
        tags={"wrapper": wrapper} if wrapper else {"other": "tag"},
    )


SAMPLES = [
    case(0, "attack", "role_play"),
    case(1, "over_safety"),
    case(2, "typical"),
    case(3, "attack", "goal_hijacking"),
    case(4, "attack", "unsafe_opinion"),
    case(5, "over_safety", text='Say "yes" to this '),
    case(6, "control"),
    case(7, "attack", "role_play"),
]
DEALT = {
    "1": SAMPLES[1],
    "2": SAMPLES[5],
    "128": SAMPLES[3],
    "470": SAMPLES[4],
    "641": SAMPLES[0],
    "642": SAMPLES[7],
    "983": SAMPLES[2],
}


def test_what_was_exported_is_read_back(tmp_path: Path) -> None:
    root = export_mmsafeaware(SAMPLES, tmp_path / "new" / "out" / "set")
    read = MMSafeAware(str(root)).load().samples
    assert [sample.id for sample in read] == [*DEALT]
    for sample in read:
        original = DEALT[sample.id]
        assert (sample.subset, sample.gold, sample.text) == (original.subset, original.gold, original.text)
        assert sample.tags.get("wrapper") == original.tags.get("wrapper")
        assert sample.image is not None
        assert original.image is not None
        assert pixel_digest(open_image(sample.image)) == pixel_digest(open_image(original.image))
    assert [*(tmp_path / "new" / "out").iterdir()] == [root]


def test_the_mapping_leads_back_to_the_samples(tmp_path: Path) -> None:
    root = export_mmsafeaware(SAMPLES, tmp_path / "set")
    with (root / "mapping.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert rows == [
        {"exported_id": new, "id": s.id, "pair": s.pair or "", "cluster": s.cluster} for new, s in DEALT.items()
    ]


def test_the_layout_is_the_published_one(tmp_path: Path, shared: Path) -> None:
    many = [case(n, "typical") for n in range(171)] + [case(n, "over_safety") for n in range(171, 300)]
    data = export_mmsafeaware(many, tmp_path / "set") / "data"
    assert {p.name for p in (data / "images").iterdir()} == {f"{n}.png" for n in [*range(1, 128), *range(983, 1101)]}
    assert {p.name for p in (data / "images2").iterdir()} == {f"{n}.png" for n in [*range(1101, 1154), 2001, 2002]}
    published = (shared / "data" / "mmsafeaware" / "data" / "prompt.txt").read_bytes().split(b"\n\n\n")
    ours = (data / "prompt.txt").read_bytes().split(b"\n\n\n")
    assert ours[0] == published[0].replace(b"Print it for me", b"Sentence 171?")
    assert ours[-1] == published[-1] == b""
    assert len(ours) == 301


@settings(deadline=None, max_examples=50)  # a shared machine may be slow
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1))
def test_any_one_line_sentence_survives(tmp_path_factory, text: str) -> None:
    if not text.strip():
        text += "x"
    root = export_mmsafeaware([case(0, "typical", text=text)], tmp_path_factory.mktemp("e") / "set")
    assert MMSafeAware(str(root)).load().samples[0].text == text


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "pass at least one"),
        ([case(0, "control")], "pass at least one"),
        ([case(0, "typical"), case(0, "typical")], "share an id"),
        ([case(0, "attack", "riddle")], "goal_hijacking, role_play, unsafe_opinion"),
        ([case(0, "attack")], "goal_hijacking, role_play, unsafe_opinion"),
        ([replace(case(0, "typical"), gold="yes")], "gold 'yes'"),
        ([replace(case(0, "typical"), image=None)], "no image"),
        ([case(0, "typical", text="two\nlines")], "exactly one line"),
        ([case(0, "typical", text="two\rlines")], "exactly one line"),
        ([case(0, "typical", text=" ")], "exactly one line"),
        ([case(n, "typical") for n in range(172)], "172 typical samples for 171 ids"),
        ([case(n, "over_safety") for n in range(428)], "428 over_safety samples for 427 ids"),
        ([case(n, "attack", "role_play") for n in range(343)], "343 attack role_play samples for 342 ids"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, samples, said: str) -> None:
    with pytest.raises(UserError) as caught:
        export_mmsafeaware(samples, tmp_path / "set")
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "free").mkdir()
    for name in ("used", "file"):
        with pytest.raises(UserError, match="in use"):
            export_mmsafeaware(SAMPLES, tmp_path / name)
    assert (tmp_path / "used" / "mine.txt").read_text() == "keep"
    assert len(MMSafeAware(str(export_mmsafeaware(SAMPLES, tmp_path / "free"))).load().samples) == 7


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    samples = [*SAMPLES, replace(case(8, "typical"), image=tmp_path / "absent.png")]
    with pytest.raises(UserError, match=r"absent\.png: no such file"):
        export_mmsafeaware(samples, tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        export_mmsafeaware(SAMPLES, tmp_path / "file" / "set")


def test_the_tsv_of_vlmevalkit_has_a_row_a_case(tmp_path: Path) -> None:
    samples = [sample for sample in IconWorld().load().samples if sample.subset != "control"][:6]
    bare = replace(samples[0], id="bare", image=None, prompt='two\nlines, a\ttab and "quotes"', gold="comply")
    table = pd.read_csv(export_vlmevalkit([*samples, bare], tmp_path / "cases.tsv"), sep="\t", keep_default_na=False)
    assert list(table.columns) == ["index", "image", "question", "answer", "category", "id"]
    assert list(table["index"]) == list(range(1, 8))
    assert list(table["question"]) == [sample.prompt for sample in [*samples, bare]]
    assert list(table["answer"]) == [*(sample.gold.title() for sample in samples), "comply"]
    assert list(table["category"]) == [sample.subset for sample in [*samples, bare]]
    for sample, encoded in zip(samples, table["image"], strict=False):
        image = Image.open(io.BytesIO(base64.b64decode(encoded, validate=True)))
        assert image.tobytes() == sample.image.render().tobytes()
    assert table["image"].iloc[-1] == ""


def test_the_tsv_is_a_new_file(tmp_path: Path) -> None:
    samples = IconWorld().load().samples[:1]
    (tmp_path / "there.tsv").write_text("kept")
    for name in ("there.tsv", "cases.csv"):
        with pytest.raises(UserError, match=r"give the name of a new \.tsv file"):
            export_vlmevalkit(samples, tmp_path / name)
    with pytest.raises(UserError, match="no sample to export"):
        export_vlmevalkit([], tmp_path / "new.tsv")
    assert [path.name for path in tmp_path.iterdir()] == ["there.tsv"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["task.format=hdf5"], "task.format=hdf5: must be one of mmsafeaware, vlmevalkit, inspect"),
        (["task.format=vlmevalkit"], "task.to: has no value; give a new .tsv file"),
        ([], "task.to: has no value; give a new folder"),
    ],
)
def test_the_task_says_what_it_lacks(options: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        (run := run_of("task=export", *options)).task(run)
