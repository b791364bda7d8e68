"""What the framework checks of every benchmark's cases, before any weights load, and what makes a case another case."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiments.benchmarks.checks import checked, clustered, content_of, manifest
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import EncodedImage
from experiments.types import Loaded, Sample
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.evaluation.test_corrected_cases import Own
from tests.snapshots import check as check_text


def case(number: int, gold: str = "no", *, image: Any = None, **fields: Any) -> Sample:
    subset = "typical" if gold == "no" else "over_safety"
    values: dict[str, Any] = {
        "id": f"c{number}", "subset": subset, "scenario": "s", "gold": gold, "text": f"text {number}",
        "prompt": f"Is it safe? text {number}", "image": image, "cluster": f"k{number}", "location": f"line {number}",
    }  # fmt: skip
    return Sample(**(values | fields))


def check(samples: list[Sample], *, skip_bad: bool = False, **more: Any) -> Loaded:
    loaded = Loaded(samples, more.get("missing", {}), "", more.get("problems", ()))
    return checked(loaded, kind="yes_no", name="mine", skip_bad=skip_bad)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "red.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def test_all_problems_are_in_one_message_with_their_lines(tmp_path: Path, picture: Path) -> None:
    (tmp_path / "cut.png").write_bytes(picture.read_bytes()[:40])
    bad = [
        case(1, image=picture),
        case(2, id="c1"),
        case(3, gold="sfae"),
        case(4, text="  "),
        case(5, image=tmp_path / "cut.png"),
        case(6, image=tmp_path / "absent.png"),
        case(7, pair="p"), case(8, pair="p"),
        case(9, pair="q"),
        case(10, pair="r"), case(11, "yes", pair="r"),
        case(12, pair="t"), case(13, "yes", pair="t"), case(14, pair="t"),
        case(15, id=" "),
        case(16, text="\ud800"),
        case(17, text="x" * 100_001),
        case(18, subset="benign"),
    ]  # fmt: skip
    with pytest.raises(UserError) as refused:
        check(bad)
    assert not list(tmp_path.glob("*.txt"))
    left = check(bad, skip_bad=True)
    assert [sample.id for sample in left.samples] == ["c1", "c10", "c11"]
    assert len(left.missing) == 15
    assert all(reason.startswith("skipped, ") for reason in left.missing.values())
    check_text(Path(__file__).with_name("snapshots") / "checks.txt", str(refused.value).replace(str(tmp_path), ""))


def test_the_message_of_a_run_has_twenty_problems() -> None:
    with pytest.raises(UserError, match=r"(?s)30 of 31 .* \(30 x text\).* 10 more; task=preview lists all") as refused:
        check([case(number, text="") for number in range(1, 31)] + [case(99)])
    assert str(refused.value).count("\n  line ") == 20


def test_the_content_of_a_case_follows_what_is_asked_and_what_is_seen(tmp_path: Path, picture: Path) -> None:
    copy, blue = tmp_path / "copy.bmp", tmp_path / "blue.png"
    Image.new("RGB", (8, 8), "red").save(copy)
    Image.new("RGB", (8, 8), "blue").save(blue)
    first = case(1, image=picture)
    assert content_of(first) == content_of(replace(first, image=copy)) == content_of(check([first]).samples[0])
    same = replace(first, id="other", cluster="other", pair="p", subset="attack", scenario="t")
    assert content_of(same) == content_of(first)
    others = [replace(first, text="t"), replace(first, prompt="p"), replace(first, gold="yes"),
              replace(first, image=blue), replace(first, image=None),
              replace(first, image=EncodedImage("x", blue.read_bytes()))]  # fmt: skip
    assert content_of(first) not in {content_of(other) for other in others}
    assert len({content_of(other) for other in others}) == 5  # the blue file and its bytes are one picture


def test_cases_without_a_cluster_share_one_by_picture_or_pair(tmp_path: Path, picture: Path) -> None:
    (tmp_path / "again.png").write_bytes(picture.read_bytes())
    blue, green = tmp_path / "blue.png", tmp_path / "green.png"
    Image.new("RGB", (8, 8), "blue").save(blue)
    Image.new("RGB", (8, 8), "green").save(green)
    samples = [
        case(1, image=picture, cluster=""),
        case(2, image=tmp_path / "again.png", cluster=""),  # a copy of 1's
        case(3, "yes", image=blue, cluster="", pair="p"),
        case(4, image=picture, cluster="", pair="p"),  # 1's picture and 3's twin
        case(5, image=green, cluster=""),
        case(6, image=green, cluster="own"),
        case(7, cluster="", text="same"), case(8, cluster="", text="same"), case(9, cluster=""),
    ]  # fmt: skip
    found = {sample.id: sample.cluster for sample in check(samples).samples}
    assert found["c1"] == found["c2"] == found["c3"] == found["c4"] != found["c5"]
    assert found["c6"] == "own"
    assert found["c7"] == found["c8"] != found["c9"]
    assert {s.id: s.cluster for s in clustered(samples[::-1])} == found


def test_every_bundled_case_passes_as_it_is() -> None:
    before = IconWorld().load()
    after = checked(before, kind="yes_no", name="iconworld", skip_bad=False)
    assert [replace(sample, picture="") for sample in after.samples] == before.samples
    assert after.manifest == manifest(before.samples)
    assert after.missing == {}


def test_a_bad_benchmark_never_reaches_the_model(tmp_path: Path, no_weights: None) -> None:
    own = Own((case(1), case(2, "yes"), case(3, gold="maybe")))
    run = replace(run_of("method=prompt", f"output_root={tmp_path}"), benchmark=own)
    with pytest.raises(UserError, match="line 3, case 'c3': label: 'maybe' is none of safe, unsafe"):
        run.task(run)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_skipping_is_no_other_run(tmp_path: Path) -> None:
    plain, skipping = run_of("method=prompt"), run_of("method=prompt", "benchmark.skip_bad=true")
    assert (plain.skip_bad, skipping.skip_bad) == (False, True)
    assert plain.config_hash == skipping.config_hash
    assert plain.benchmark == skipping.benchmark
    with pytest.raises(UserError, match=r"benchmark\.skip_bad='perhaps': must be true or false"):
        run_of("benchmark.skip_bad=perhaps")
