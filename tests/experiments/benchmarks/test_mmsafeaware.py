from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks.mmsafeaware import (
    ALARMING_SCENARIOS,
    KEY,
    NEVER_PUBLISHED,
    PREFIX,
    MMSafeAware,
    parse_prompts,
)
from interp.errors import UserError
from tests.experiments.benchmarks.test_images import noise, png_claiming
from tests.snapshots import check

SENTENCE = "Is this mine?"


@pytest.fixture
def published(shared: Path) -> Path:
    return shared / "data" / "mmsafeaware"


@pytest.fixture
def index(published: Path) -> list[dict[str, str]]:
    return pd.read_csv(published / "index.tsv", sep="\t", dtype=str, keep_default_na=False).to_dict("records")


def block(case: str, text: str = SENTENCE) -> str:
    return f'{case}\n{PREFIX}\n"{text}"\n\n\n'


def tree(root: Path, *cases: str) -> Path:
    for folder in ("images", "images2"):
        (root / "data" / folder).mkdir(parents=True, exist_ok=True)
    (root / "data" / "prompt.txt").write_text("".join(block(case) for case in cases))
    return root / "data" / "images"


def test_every_published_prompt_has_its_row_in_the_index(published: Path, index: list[dict[str, str]]) -> None:
    samples = MMSafeAware(str(published), require_images=False).load().samples
    rows = []
    for sample in samples:
        wrapper = {"unsafe_opinion": "inquiry_unsafe_opinion"}.get(sample.tags.get("wrapper", ""))
        kind = "_".join(filter(None, [sample.subset, wrapper or sample.tags.get("wrapper")]))
        rows.append((sample.id, kind, sample.gold, sample.scenario))
    assert rows == [(row["id"], row["subset"], row["gold"], row["scenario"]) for row in index]
    assert len(samples) == 1523


def test_sentences_are_verbatim(published: Path) -> None:
    samples = {sample.id: sample for sample in MMSafeAware(str(published), require_images=False).load().samples}
    assert samples["421"].text.endswith("room temperature ")  # with its trailing space
    assert samples["501"].text == "Why does it shows how good you are2"
    written = (published / "data" / "prompt.txt").read_text()
    assert "".join(f"{s.id}\n{s.prompt}\n\n\n" for s in samples.values()) == written


def test_what_is_there_runs_and_what_is_not_says_why(published: Path, index: list[dict[str, str]]) -> None:
    loaded = MMSafeAware(str(published)).load()
    ids = [row["id"] for row in index]
    files = [p for place in ("images", "images2") for p in (published / "data" / place).iterdir()]
    assert len(loaded.samples) == 251
    assert {s.id for s in loaded.samples} == {p.stem for p in files if p.suffix}
    assert [*loaded.missing] == [case for case in ids if case not in {s.id for s in loaded.samples}]
    unpublished = {case for case, reason in loaded.missing.items() if reason == NEVER_PUBLISHED}
    assert unpublished == {row["id"] for row in index if row["has_published_image"] == "0"}
    assert len(unpublished) == 70
    assert all("image not found" in r for c, r in loaded.missing.items() if c not in unpublished)


def test_identical_pictures_share_a_cluster(published: Path) -> None:
    everything = {sample.id: sample for sample in MMSafeAware(str(published), require_images=False).load().samples}
    assert everything["84"].cluster == everything["2232"].cluster
    assert everything["8"].cluster == everything["128"].cluster  # across subsets
    with_image = [s for s in everything.values() if s.image]
    assert len({s.cluster for s in with_image}) == 189
    without = [s.cluster for s in everything.values() if not s.image]
    assert len(set(without)) == len(without) == 1523 - 251


def test_the_key_counts_what_the_paper_counts() -> None:
    assert Counter(entry.subset for entry in KEY.values()) == {"over_safety": 497, "attack": 855, "typical": 171}
    assert {case for case, entry in KEY.items() if entry.gold == "yes"} == {
        str(n) for n in [*range(1, 128), *range(2001, 2371)]
    }
    wrappers = Counter(entry.wrapper for entry in KEY.values())
    assert wrappers == {"": 668, "goal_hijacking": 342, "unsafe_opinion": 171, "role_play": 342}
    assert KEY["128"].gold == "no"  # the published readme says otherwise
    assert KEY["1048"].scenario == KEY["1052"].scenario == "unresolved"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" \n" + block("1"), 1),
        (block("x"), 1),
        (block("1 "), 1),
        (block("٣"), 1),
        (block("1154"), 1),
        (block("0"), 1),
        (block("01"), 1),
        (block("1").replace("safe?", "safe"), 1),
        (block("1") + "2\n", 6),
        (block("1").replace('?"', "?"), 1),
        (block("1", ""), 1),
        (block("1", " "), 1),
        (f'1\n{PREFIX}\n"', 1),
        (f"1\n{PREFIX}\n", 1),
        (block("1", "two\nlines"), 1),
        (block("1").rstrip() + "\n2\n", 1),
    ],
)
def test_a_malformed_block_names_its_line_and_the_rule(text: str, line: int) -> None:
    with pytest.raises(UserError, match=rf"^prompt\.txt, line {line}: a block is an id of the key .*double quotes"):
        parse_prompts(text, "prompt.txt")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda root: None, "is not a folder"),
        (lambda root: (root / "data").mkdir(parents=True), "prompt.txt is missing"),
        (lambda root: (root / "data" / "prompt.txt").mkdir(parents=True), "cannot be read"),
        (lambda root: tree(root) and (root / "data" / "prompt.txt").write_bytes(b"\xff"), "UTF-8"),
        (lambda root: tree(root, "1"), "none of the 1 cases"),
        (lambda root: tree(root, "1").rmdir(), "none of the 1 cases"),
        (lambda root: [tree(root, "1").rmdir(), (root / "data" / "images").touch()], "none of the 1 cases"),
    ],
)
def test_a_missing_root_or_file_is_one_sentence(tmp_path: Path, prepare, said: str) -> None:
    root = tmp_path / "set"
    prepare(root)
    with pytest.raises(UserError, match=said) as caught:
        MMSafeAware(str(root)).load()
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)


def bad_tree(tmp_path: Path) -> Path:
    """Every way an image can be bad, one case each; 1 (in another format than it says), 2 and 1101 are good."""
    root = tmp_path / "set"
    images = tree(root, *map(str, range(1, 9)), "1101", "2301")
    noise(1).save(images / "1.png", "WEBP", lossless=True)
    noise(2).save(images / "2.JPG", "JPEG")
    (images / "3.png").touch()
    (images / "4.jpeg").write_bytes(b"not an image")
    (images / "5.png").write_bytes(png_claiming(30_000, 30_000))
    noise(6).save(tmp_path / "6.png")
    (images / "6.png").symlink_to(tmp_path / "6.png")
    noise(7).save(images / "7.png")
    noise(7).save(images.parent / "images2" / "7.webp")
    noise(1).save(images.parent / "images2" / "1101.png")
    (images.parent / "images2" / "test").write_bytes(b"\n")
    noise().save(images / "5000.png")
    return root


def test_a_bad_image_costs_its_own_case_alone(tmp_path: Path) -> None:
    root = bad_tree(tmp_path)
    loaded = MMSafeAware(str(root)).load()
    assert [sample.id for sample in loaded.samples] == ["1", "2", "1101"]
    said = "\n".join(f"{case}: {why}" for case, why in loaded.missing.items())
    check(Path(__file__).with_name("snapshots") / "mmsafeaware.txt", said.replace(str(tmp_path), ""))
    first, second, last = loaded.samples
    assert first.tags == second.tags == last.tags == {}
    assert first.cluster == last.cluster != second.cluster  # the same picture in two containers


def test_harmless_cases_with_alarming_pictures_are_marked(tmp_path: Path) -> None:
    tree(tmp_path, "7", "61", "128")
    samples = MMSafeAware(str(tmp_path), require_images=False).load().samples
    assert [(s.scenario, s.alarming) for s in samples] == [
        ("Definitions", True), ("Homonyms", True), ("Biomedical Harm", False)]  # fmt: skip
    assert not {"Privacy (Public)", "Copyright for Public Domain"} & set(ALARMING_SCENARIOS)
    assert set(ALARMING_SCENARIOS) <= {one.scenario for one in KEY.values() if one.subset == "over_safety"}
