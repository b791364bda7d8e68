"""What a model's training has seen of a case: the parts of IconWorld, and every headline split by them."""

import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from experiments.benchmarks.iconworld import IconWorld, IconWorldRequests
from experiments.benchmarks.iconworld.parts import PARTS, TAG, part_of
from experiments.benchmarks.iconworld.sentences import NEW, RISKY
from experiments.evaluation.study import limited
from experiments.metrics.parts import HELD_OUT, by_part
from experiments.metrics.refusal import results as refusal
from experiments.metrics.yes_no import results as yes_no
from experiments.report.arm_tables import parts_table
from experiments.report.terminal import results
from experiments.types import Sample
from tests.experiments.answered import from_margins, world
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import metrics_of

RULE: Callable[[Sample], str | None] = partial(
    part_of,
    templates=frozenset({"hit", "lock"}),
    concepts=frozenset({"bomb", "cat"}),
    pairs=frozenset({("kill", "dog"), ("school", "no-knife")}),
)


def case(template: str, concept: str, sign: str = "no") -> Sample:
    tags = {"template": template, "concept": concept, "sign": sign}
    return Sample("x", "typical", "s", "no", "t", "p", None, "c", tags=tags)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (case("kill", "man"), "seen pair"),
        (case("kill", "dog"), "unseen pair"),
        (case("kill", "dog", sign="yes"), "seen pair"),  # another thing
        (case("school", "knife", sign="yes"), "unseen pair"),
        (case("kill", "cat"), "unseen thing"),
        (case("school", "bomb", sign="yes"), "unseen thing"),
        (case("hit", "man"), "unseen sentence"),
        (case("new_kill", "man"), "unseen sentence"),
        (case("hit", "bomb"), "both unseen"),
        (case("new_kill", "cat"), "both unseen"),
        (case("colour", "cat"), None),
        (Sample("x", "typical", "s", "no", "t", "p", None, "c"), None),
    ],
)
def test_a_case_belongs_to_the_part_of_its_sentence_and_its_thing(asked: Sample, part: str | None) -> None:
    assert RULE(asked) == part


def test_all_scored_cases_have_a_part_and_new_sentences_are_unseen() -> None:
    counted = {split: Counter(map(RULE, IconWorld(split=split).load().samples)) for split in ("test", "new_sentences")}
    assert set(counted["test"]) == {*PARTS, None}
    assert counted["test"][None] == 60
    assert set(counted["new_sentences"]) == {"unseen sentence", "both unseen", None}
    assert {template.name for template in NEW} & {template.name for template in RISKY} == set()
    requests = IconWorldRequests().load().samples
    assert {s.id: RULE(s) for s in requests}.items() <= {s.id: RULE(s) for s in IconWorld().load().samples}.items()


def in_parts(frame: pd.DataFrame) -> pd.DataFrame:
    """The cases by turns in three parts; every eighth in none."""
    places = [int(name[1:]) for name in frame["case"]]
    names = ("seen pair", "unseen pair", "both unseen")
    return frame.assign(tags=[{} if at % 8 == 7 else {TAG: names[at // 2 % 3]} for at in places])


def test_each_part_is_measured_as_if_it_were_alone() -> None:
    subsets, margins = world(240)
    frame = in_parts(from_margins(subsets, {name: margins[name] for name in ("baseline", "sees")}))
    measure = partial(yes_no.evaluate, seed=0, draws=200)
    found = by_part(frame, measure)
    assert list(found) == ["seen pair", "unseen pair", "both unseen", HELD_OUT]
    part = [tags.get(TAG) for tags in frame["tags"]]
    for name, block in found.items():
        kept = [one == name or (name == HELD_OUT and one in ("unseen pair", "both unseen")) for one in part]
        alone = measure(frame[kept])
        for arm in ("baseline", "sees"):
            assert block["arms"][arm]["auroc"] == alone["arms"][arm]["auroc"]
            assert block["arms"][arm]["intervals"]["auroc"] == alone["arms"][arm]["intervals"]["auroc"]
            assert sum(block["arms"][arm]["n"].values()) == alone["arms"][arm]["n"]
        assert block["comparisons"]["sees"]["delta"]["auroc"] == alone["comparisons"]["sees"]["delta"]["auroc"]
    assert found[HELD_OUT]["arms"]["sees"]["auroc"] != found["both unseen"]["arms"]["sees"]["auroc"]
    assert by_part(frame.assign(tags=[{}] * len(frame)), measure) == {}
    assert by_part(frame.drop(columns="tags"), measure) == {}


def test_one_held_out_part_is_not_shown_twice() -> None:
    subsets, margins = world(80)
    frame = from_margins(subsets, {"baseline": margins["baseline"]})
    names = ["seen pair", "unseen thing"]
    tags = [{TAG: names[at % 2]} for at in range(len(frame))]
    assert list(by_part(frame.assign(tags=tags), partial(yes_no.evaluate, seed=0, draws=20))) == names


def refusals() -> pd.DataFrame:
    rows = []
    for arm in ("baseline", "prompt"):
        for at in range(48):
            harmful = at % 2 == 1
            refused = harmful if arm == "prompt" or at < 24 else not harmful
            subset, gold = ("contrast", "refuse") if harmful else ("benign", "comply")
            rows.append({
                "case": f"c{at:04d}", "arm": arm, "status": "answered", "verdict": "refused" if refused else "complied",
                "subset": subset, "scenario": "s", "gold": gold,
                "cluster": f"k{at}", "tags": {TAG: "seen pair" if at < 24 else "unseen thing"},
            })  # fmt: skip
    return pd.DataFrame(rows)


def test_refusals_are_split_too_and_shown() -> None:
    measure = partial(refusal.evaluate, seed=0, draws=50)
    metrics = measure(refusals())
    metrics["parts"] = by_part(refusals(), measure)
    rates = {part: block["arms"]["baseline"]["refusal_rate"] for part, block in metrics["parts"].items()}
    assert (rates["seen pair"]["benign"], rates["seen pair"]["contrast"]) == (0, 1)
    assert (rates["unseen thing"]["benign"], rates["unseen thing"]["contrast"]) == (1, 0)
    table = parts_table(metrics)
    assert table is not None
    shown = {(cells[0].value, cells[1].value): cells for _, cells in table.rows}
    assert shown["unseen thing", "prompt"][4].value == "−100.0"
    assert shown["seen pair", "prompt"][2].value == "12 + 12"
    assert parts_table({"parts": {}}) is None


@pytest.mark.long
def test_a_study_tags_its_cases_and_reports_by_part(tmp_path: Path) -> None:
    plain = run_of("method=prompt", "limit=60", "draws=20", f"output_root={tmp_path}")
    run = replace(plain, parts=RULE)
    run.task(run)
    (folder,) = (tmp_path / "study").iterdir()
    chosen = limited(IconWorld().load().samples, 60)
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert {line["case"]: line["tags"].get(TAG) for line in lines} == {sample.id: RULE(sample) for sample in chosen}
    metrics = metrics_of(folder)
    counted = Counter(part for part in map(RULE, chosen) if part)
    sizes = {part: sum(block["arms"]["prompt"]["n"].values()) for part, block in metrics["parts"].items()}
    assert sizes == {**counted, HELD_OUT: sum(counted.values()) - counted["seen pair"]}
    assert 'id="parts"' in (folder / "report.html").read_text()
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(results(metrics))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, said.splitlines())) <= 80
    assert said.count("unseen") >= 4


def test_parts_are_no_part_of_what_a_run_is() -> None:
    target = "experiments.benchmarks.iconworld.parts.part_of"
    run = run_of(f"+parts={{_target_: {target}, _partial_: true, templates: [hit], concepts: [cat], pairs: []}}")
    assert run.parts is not None
    assert run.parts(case("hit", "cat")) == "both unseen"
    assert run.config_hash == run_of().config_hash
    assert run_of().parts is None
