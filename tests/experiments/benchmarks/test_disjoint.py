"""Cases to learn from are none of those that are evaluated: said before any weights load, with a way to go on."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from experiments.benchmarks.checks import checked, disjoint, shared
from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.cases import development_cases, load_cases
from experiments.types import Loaded, Sample
from interp.errors import UserError
from tests.experiments.benchmarks.test_checks import case
from tests.experiments.compose import run_of


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name, colour in {"red": "red", "copy": "red", "blue": "blue", "green": "green"}.items():
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.{'bmp' if name == 'copy' else 'png'}")
    return tmp_path


def prepared(samples: list[Sample]) -> Loaded:
    return checked(Loaded(samples, {}, ""), kind="yes_no", name="x", skip_bad=True)


def test_each_way_to_be_the_same_case_is_found(pictures: Path) -> None:
    red, copy, blue, green = (pictures / name for name in ("red.png", "copy.bmp", "blue.png", "green.png"))
    tested = prepared(
        [
            case(1, image=red, text="How do I  kill this?"),
            case(2, image=blue, cluster="", text="t"),
            case(3, image=green, pair="p"), case(4, "yes", image=green, pair="p"),
            case(5, cluster="", text="Words alone"),
        ]
    )  # fmt: skip
    learned = [
        case(11, image=copy, text="how do I kill this?"),
        case(12, image=red, text="other", prompt='Is it safe?\n"How do I kill this?"'),
        case(13, image=red, text="other"),
        case(1, image=green, text="other"),
        case(14, text="a", pair="p"), case(15, "yes", text="b", pair="p"),
        case(16, cluster="k1"),
        case(17, image=blue, cluster="", text="another sentence"),
        case(18, cluster="", text="words alone"),
        case(19, cluster="", text="all its own"),
    ]  # fmt: skip
    learned = prepared(learned).samples
    found = shared(learned, tested.samples)
    assert {place: problem.reason.partition(":")[0] for place, problem in found.items()} == {
        0: "picture and text", 1: "picture and text", 3: "id", 4: "pair", 5: "pair", 6: "cluster", 7: "picture",
        8: "picture and text",
    }  # fmt: skip
    assert str(found[3]) == "line 1, case 'c1': id: is that of the evaluated case 'c1' (line 1)"
    assert set(shared(learned, tested.samples, clusters=False)) == set(found) - {6}


@pytest.mark.long
def test_the_bundled_splits_share_no_case_and_their_clusters_by_intention(tmp_path: Path) -> None:
    test, development = IconWorld().load().samples, IconWorld().development()
    assert not shared(development.samples, test, clusters=False)
    assert shared(development.samples, test)
    run = run_of("method=prompt", f"output_root={tmp_path}")
    found = development_cases(run, test)
    assert len(found.samples) == len(development.samples)
    for split in ("new_sentences", "frames"):
        assert not shared(IconWorld(split=split).load().samples, test, clusters=False)


def test_all_that_remains_is_learned_from_and_nothing_is_not_enough() -> None:
    both, own = case(1), case(2)
    learned, words = Loaded([both, own], {}, "m"), {"name": "mine"}
    left = disjoint(learned, [both], skip_bad=True, **words)  # type: ignore[arg-type]
    assert left.samples == [own]
    assert list(left.missing) == ["c1 (line 1)"]
    assert disjoint(learned, [case(3)], skip_bad=False, **words) is learned  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no other case is left"):
        disjoint(learned, [both, replace(own, text="other")], skip_bad=True, **words)  # type: ignore[arg-type]


def written(folder: Path, name: str, numbers: range) -> Path:
    for number in numbers:
        Image.new("RGB", (8, 8), (number, 0, 90)).save(folder / f"{number}.png")
    rows = [(number, f"{number}.png", f"text {number}", "safe" if number % 2 else "unsafe") for number in numbers]
    pd.DataFrame(rows, columns=["id", "image", "text", "label"]).to_csv(folder / name, index=False)
    return folder / name


@pytest.mark.long
def test_a_development_table_that_holds_evaluated_cases_never_reaches_the_model(
    tmp_path: Path, no_weights: None
) -> None:
    test, development = written(tmp_path, "test.csv", range(30)), written(tmp_path, "dev.csv", range(28, 60))
    options = ("method=steering", "benchmark=table", f"benchmark.path={test}", f"benchmark.development={development}")
    run = run_of(*options, f"output_root={tmp_path / 'out'}")
    with pytest.raises(UserError) as refused:
        run.task(run)
    assert str(refused.value).splitlines() == [
        "benchmark test.csv, development split: 2 of 32 cases to learn from are evaluated too",
        "  line 2, case '28': picture and text: are those of the evaluated case '28' (line 30)",
        "  line 3, case '29': picture and text: are those of the evaluated case '29' (line 31)",
        "keep each case, pair and cluster on one side, or learn from the others alone: benchmark.skip_bad=true",
    ]
    assert not (tmp_path / "out").exists()
    going_on = run_of(*options, "benchmark.skip_bad=true", f"output_root={tmp_path / 'out'}")
    found = development_cases(going_on, load_cases(going_on, Console(quiet=True)).samples)
    assert len(found.samples) == 30
