"""Planted networks: the planted turn and picture are found, and nothing else; no share where twins do not differ."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from experiments.runs.results_table import Results, read_results
from experiments.studies.conversation_causes import CONTROL, Twins, causes, differing, exchanged
from interp.attention.record import Queries, record_attention
from interp.attention.tables import normalised
from interp.prompt import Prompt
from interp.sequence_metric import SequenceMetric
from tests.experiments.compose import ran
from tests.experiments.refusing import ColouredConversations, refusing_run
from tests.planted import OPENINGS, Plan, coloured, planted

PAIRS = 24


def user(*parts):
    kinds = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return {"role": "user", "content": kinds}


ANSWER = {"role": "assistant", "content": "it is a dog"}


def pictures(plan=(1, 2), flat=False):
    """Twins with two pictures. They differ in the redness of picture ``plan[1]``, and in the green of the other."""
    rng = random.Random(0)
    pairs = []
    for number in range(PAIRS):
        red, same = rng.uniform(0.2, 0.9), rng.uniform(-0.5, 0.5)
        both = []
        for sign, green in ((-1, 0.2), (1, 0.8)):
            shown = {plan[1]: coloured(0.3 if flat else sign * red, green=green if flat else 0.5)}
            shown[plan[0]] = coloured(same, green=green)
            both.append(Prompt(messages=[user(shown[1], shown[2], "is this safe ?")]))
        pairs.append(Twins(*both, cluster=str(number // 2)))
    return pairs


def turns():
    """Twins that differ in the first turn, where one is alarming, and in the last turn, which does not matter."""
    rng = random.Random(1)
    pairs = []
    for number in range(PAIRS):
        picture = coloured(rng.uniform(0.3, 0.9))
        first = [user(picture, f"{word} {rng.choice(['this', 'it', 'that'])} ?") for word in ("kill", "how do I")]
        last = [user(words) for words in ("is this safe ?", "safe ?")]
        both = [Prompt(messages=[a, ANSWER, b]) for a, b in zip(first, last, strict=True)]
        pairs.append(Twins(*both, cluster=str(number // 2)))
    return pairs


def measured(vlm, pairs):
    details, rows = causes(vlm, pairs, draws=500)
    return details, Results(rows)


def test_nothing_is_shared_out_where_twins_do_not_differ_for_the_model():
    details, results = measured(planted(), pictures(flat=True))
    assert results.get("", "conversation_gap", subset="image:1 + image:2").claim not in ("higher", "lower")
    assert not results.select(quantity="conversation_share")
    alike = measured(planted(), turns())  # a network that does not read words
    assert not alike[1].select(quantity="conversation_share")
    assert details["unlike"] == 0


def test_one_pair_is_too_few():
    _, results = measured(planted(), pictures()[:1])
    assert results.get("", "conversation_gap", subset="image:1 + image:2").claim == "too few cases"
    assert not results.select(quantity="conversation_share")


def test_parts_are_exchanged_in_their_places():
    one, other = turns()[0][:2]
    assert one.parts == {"image:1": [(0, 0)], "user:1": [(0, 1)], "assistant:1": [(1, 0)], "user:2": [(2, 0)]}
    assert differing(turns()[0]) == ["user:1", "user:2"]
    changed = exchanged(one, other, "user:1")
    assert changed.turns[0].parts == (one.images[0], other.turns[0].parts[1])
    assert changed.turns[1:] == one.turns[1:]
    assert differing(Twins(changed, one, "a")) == ["user:1"]
    short = Prompt("safe ?", one.images[0])
    assert differing(Twins(short, one, "a")) == []
    details, _ = measured(planted(), [*pictures(), Twins(short, one, "a")])
    assert details["unlike"] == 1


def test_the_share_is_the_sum_of_moves_over_the_sum_of_gaps():
    vlm, pairs = planted(Plan(carriers=((1, 0, 0.5),))), pictures()
    form = "image:1 + image:2"
    _, results = measured(vlm, pairs)
    gaps, moves = [], []
    for unsafe, safe, _ in pairs:
        a, b, c, d = vlm.score([unsafe, safe, exchanged(unsafe, safe, "image:2"), exchanged(safe, unsafe, "image:2")])
        gaps.append(float(b - a))
        moves.append(float((c - a) + (b - d)) / 2)
    assert results.get("", "conversation_gap", subset=form).value == pytest.approx(np.mean(gaps), rel=1e-4)
    expected = sum(moves) / sum(gaps)
    assert results.get("image:2", "conversation_share", subset=form).value == pytest.approx(expected, rel=1e-4)


def in_words(**plan):
    vlm = planted(Plan(in_words=True, **plan))
    vlm.metric = SequenceMetric(tuple(tuple(vlm.tokenizer.convert_tokens_to_ids(opening)) for opening in OPENINGS))
    return vlm


@pytest.mark.parametrize(
    ("network", "pairs", "cause", "other"),
    [
        (planted(), pictures(), "image:2", "image:1"),
        (planted(), pictures((2, 1)), "image:1", "image:2"),
        (planted(Plan(heeds=1)), turns(), "user:1", "user:2"),
        (in_words(), pictures(), "image:2", "image:1"),
        (in_words(heeds=1), turns(), "user:1", "user:2"),
    ],
)
def test_the_planted_cause_is_found_and_nothing_else(network, pairs, cause, other):
    details, results = measured(network, pairs)
    assert details["forms"] == [" + ".join(sorted([cause, other]))]
    assert results.select(quantity="conversation_gap")[0].claim == "higher"
    shares = {row.arm: row for row in results.select(quantity="conversation_share", rule="")}
    assert [shares[cause].value, shares[other].value] == pytest.approx([1, 0], abs=0.01)
    assert shares[cause].claim == "higher"
    assert shares[other].claim not in ("higher", "lower")
    controls = results.select(quantity="conversation_share", rule=CONTROL)
    assert len(controls) == 2
    assert not {each.claim for each in controls} & {"higher", "lower"}
    attention = {row.arm: row.value for row in results.select(quantity="conversation_attention")}
    assert attention.keys() >= {cause, other}
    if cause.startswith("image"):  # it looks at both: attention is not the cause
        assert attention[cause] == pytest.approx(attention[other], rel=0.01)


def test_nothing_is_found_for_refusals_in_words_where_nothing_is_planted():
    _, results = measured(in_words(), turns())
    assert not results.select(quantity="conversation_share")


def test_attention_of_answers_in_words_is_read_after_what_they_begin_with():
    vlm, pairs = in_words(), pictures()
    tokens = vlm.metric.openings[0][:1]

    def begin(prompts):
        return [replace(prompt, answer_prefix=tokens) for prompt in prompts]

    def read(prompts):
        with record_attention(vlm, queries=Queries.VERDICT) as record:
            vlm.score(prompts, metric=lambda logits: logits[:, 0])
        masses = normalised(record.masses)
        return masses[masses["segment"] == "image:2"]["mass_without_sink"].mean()

    both = [prompt for twins in pairs for prompt in twins[:2]]
    for ways, prompts in (({}, both), ({"begin": begin}, begin(both))):
        _, rows = causes(vlm, pairs, draws=100, **ways)
        (row,) = Results(rows).select(quantity="conversation_attention", arm="image:2")
        assert row.value == pytest.approx(read(prompts), rel=1e-5)
    assert read(both) != pytest.approx(read(begin(both)), rel=1e-3)


@pytest.mark.long
def test_a_run_asks_for_earlier_answers_and_shares_out_the_refusal_margin(monkeypatch, tmp_path, capsys):
    folder = ran(refusing_run(monkeypatch, tmp_path, "+exp=conversation_causes", benchmark=ColouredConversations()))
    results = read_results(folder)
    shares = {row.arm: row.value for row in results.select(quantity="conversation_share", rule="")}
    assert shares == pytest.approx({"user:1": 1, "assistant:1": 0}, abs=1e-3)
    assert "covers 100% of 18 refusals" in " ".join(capsys.readouterr().out.split())
    assert "attention of the decisive token" in (folder / "report.html").read_text()
    attention = {row.arm for row in results.select(quantity="conversation_attention")}
    assert attention == {"image:1", "user:1", "assistant:1", "user:2"}


@pytest.mark.long
@pytest.mark.parametrize("command", ["+exp=mechanism", "task=attention", "attention=true"])
def test_studies_look_at_conversations_with_the_answers_of_the_run(command, monkeypatch, tmp_path, capsys):
    options = ["task.failures=2"] if command == "+exp=mechanism" else []
    folder = ran(refusing_run(monkeypatch, tmp_path, command, *options, benchmark=ColouredConversations(failing=1)))
    told = " ".join(capsys.readouterr().out.split())
    assert "no answer yet" not in told
    assert "traceback" not in told
    if command == "attention=true":
        shown = json.loads((folder / "attention" / "cases.json").read_text())["cases"]
        assert all({"user:1", "assistant:1", "user:2"} <= set(case["baseline"]["names"]) for case in shown.values())
        assert shown
    else:
        assert "and covers 100% of 18 refusals" in told
