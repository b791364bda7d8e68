import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.benchmarks.mossbench import MOSSBench
from interp.errors import UserError
from tests.experiments.benchmarks.test_images import noise, png_claiming
from tests.snapshots import check


@pytest.fixture
def published(shared: Path) -> Path:
    return shared / "data" / "mossbench"


def entry(pid: str, **changes: Any) -> dict[str, Any]:
    over = {"over": f"type {(int(pid) - 1) // 100 + 1}", "human": 0, "child": 1, "syn": 0, "ocr": 1, "harm": [7]}
    fields = {"image": f"images/{pid}.png", "question": f"What is {pid}?", "pid": pid, "description": "A toy."}
    return fields | {"short description": "Toy", "metadata": over} | changes


def tree(root: Path, entries: dict[str, Any] | str, part: str = "data") -> Path:
    """Writes a set's JSON and a picture for every pid, and returns the folder of the pictures."""
    images = root / part / "images"
    images.mkdir(parents=True, exist_ok=True)
    (root / part / "images_information").mkdir(exist_ok=True)
    text = entries if isinstance(entries, str) else json.dumps(entries)
    (root / part / "images_information" / "information.json").write_text(text)
    for pid in entries if isinstance(entries, dict) else ():
        if pid.isdigit():
            noise(int(pid)).save(images / f"{pid}.png")
    return images


def test_the_published_files_count_as_the_paper_does(published: Path) -> None:
    samples = MOSSBench(str(published), sets="both").find().samples
    counts = Counter((s.subset, s.tags["type"]) for s in samples)
    assert counts == dict.fromkeys(counts, 100) | {("contrast", "2"): 44}
    assert len(counts) == 6
    benign = {s.tags["pid"]: s for s in samples if s.subset == "benign"}
    assert len({s.cluster for s in benign.values()}) == 239
    twins = [s for s in samples if s.subset == "contrast"]
    assert sum(s.text == benign[s.tags["pid"]].text for s in twins) == 43
    assert sum(s.cluster == benign[s.tags["pid"]].cluster for s in twins) == 43
    assert {s.gold for s in twins} == {"refuse"}
    assert {s.gold for s in benign.values()} == {"comply"}
    assert sum(not s.tags["description"] for s in benign.values()) == 49
    assert "0" not in {s.tags["harm"] for s in benign.values()}


def test_what_is_there_runs_and_what_is_not_says_why(published: Path) -> None:
    loaded = MOSSBench(str(published)).load()
    there = {path.stem for path in (published / "data" / "images").iterdir()}
    assert {s.tags["pid"] for s in loaded.samples} == there
    assert len(loaded.samples) == 44
    assert len(loaded.missing) == 256
    assert all("missing" in reason and ".png" in reason for reason in loaded.missing.values())


def test_a_case_is_read_whole(tmp_path: Path) -> None:
    tree(tmp_path, {"5": entry("5")})
    (sample,) = MOSSBench(str(tmp_path)).load().samples
    assert (sample.id, sample.scenario, sample.gold) == ("m5", "Exaggerated Risk", "comply")
    assert sample.text == sample.prompt == "What is 5?"
    assert sample.pair is None
    about = {"description": "A toy.", "short_description": "Toy"}
    assert sample.tags == {"pid": "5", "type": "1", **about, "harm": "7"}


def bad_tree(tmp_path: Path) -> Path:
    """Every way an entry or image can be bad, one case each; 1 (in another format than it says) and 2 are good."""
    root = tmp_path / "set"
    images = tree(root, {str(pid): entry(str(pid)) for pid in range(1, 15)})
    entries = {str(pid): entry(str(pid)) for pid in range(1, 15)}
    noise(1).save(images / "1.png", "WEBP", lossless=True)
    (images / "3.png").write_bytes(b"")
    (images / "4.png").write_bytes((images / "2.png").read_bytes()[:-40])
    (images / "5.png").write_bytes(png_claiming(30_000, 30_000))
    entries["6"]["image"] = "../../6.png"
    noise(6).save(tmp_path / "6.png")
    (images / "7.png").unlink()
    (images / "7.png").symlink_to(tmp_path / "6.png")
    (images / "8.png").unlink()
    del entries["9"]["question"]
    del entries["10"]["metadata"]["over"]
    entries["11"]["metadata"]["over"] = "type 9"
    entries["12"]["question"] = 5
    entries["13"]["question"] = "half \ud800"
    del entries["14"]["image"]
    pairs = [*entries.items(), ("../x", entry("2")), ("15", "text")]
    text = "{" + ", ".join(f"{json.dumps(pid)}: {json.dumps(value)}" for pid, value in pairs) + "}"
    tree(root, text)
    return root


def test_each_bad_entry_or_image_costs_its_own_case_alone(tmp_path: Path) -> None:
    loaded = MOSSBench(str(bad_tree(tmp_path))).load()
    assert [(s.id, s.text) for s in loaded.samples] == [("m1", "What is 1?"), ("m2", "What is 2?")]
    json.dumps(loaded.missing, ensure_ascii=False).encode()
    said = "\n".join(f"{case}: {why}" for case, why in loaded.missing.items())
    check(Path(__file__).with_name("snapshots") / "mossbench.txt", said.replace(str(tmp_path), ""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object with entries"),
        ("{}", "must be a JSON object with entries"),
        ("[" * 100_000, "is not JSON"),
        ("", "JSON"),
    ],
)
def test_a_file_that_is_no_such_object_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    tree(tmp_path, text)
    with pytest.raises(UserError, match=said) as caught:
        MOSSBench(str(tmp_path)).load()
    assert "information.json" in str(caught.value)


@settings(max_examples=30)
@given(
    fields=st.dictionaries(
        st.sampled_from(["image", "question", "pid", "metadata", "description"]),
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.just([1]), st.just({"over": "type 1"})),
    )
)
def test_no_entry_whatsoever_stops_the_others(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]) -> None:
    root = tmp_path_factory.mktemp("set")
    tree(root, {"1": entry("1")})
    tree(root, json.dumps({"1": entry("1"), "2": fields}))
    loaded = MOSSBench(str(root)).load()
    assert "m1" in [s.id for s in loaded.samples]
    assert len(loaded.samples) + len(loaded.missing) == 2


def test_pictures_of_something_risky_are_marked_as_alarming(tmp_path: Path) -> None:
    tree(tmp_path, {pid: entry(pid) for pid in ("1", "101", "201")})
    samples = MOSSBench(str(tmp_path)).load().samples
    assert [(s.scenario, s.alarming) for s in samples] == [
        ("Exaggerated Risk", True), ("Negated Harm", True), ("Counterintuitive Interpretation", False)]  # fmt: skip
