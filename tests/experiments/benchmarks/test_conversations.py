"""Conversations from tables, MTMCS-Bench, MIS and IconWorld; synthetic copies of the published layouts."""

import io
import json
from pathlib import Path

import pytest
from datasets import Dataset
from PIL import Image

from experiments.benchmarks.checks import checked, content_of
from experiments.benchmarks.iconworld import IconWorld, IconWorldRequests
from experiments.benchmarks.images import one_picture, open_pictures
from experiments.benchmarks.published_benchmark import SIDES
from experiments.benchmarks.published_sets import GIVEN, MIS, MTMCS
from experiments.benchmarks.table import table
from experiments.evaluation.cases import prompt_of
from interp.errors import UserError
from tests.tiny import picture


def pictures(folder: Path) -> None:
    for number in range(3):
        picture(number, (24 + 8 * number, 24)).save(folder / f"{number}.png")


def write(folder: Path, rows: list[dict[str, object]]) -> str:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chat(last="Is it safe?", **more):
    return [
        {"role": "user", "content": [{"type": "image", "image": "0.png"}, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": "A knife."},
        {"role": "user", "content": [{"type": "image", "image": "1.png"}, {"type": "text", "text": last}]},
    ]


def load(path: str, **options: object):
    loaded = table(path, **options).load()
    return checked(loaded, kind="refusal" if options.get("reads") else "yes_no", name="t", skip_bad=False)


def test_a_table_has_further_pictures_or_messages(tmp_path: Path) -> None:
    pictures(tmp_path)
    rows = [
        {"id": "two", "label": "harmful", "text": "Mix?", "image": "0.png", "image_2": "1.png", "image_3": "2.png"},
        {"id": "one", "label": "benign", "text": "Eat it?", "image": "0.png"},
        {"id": "chat", "label": "benign", "messages": chat()},
        {"id": "text", "label": "benign", "messages": json.dumps(chat("Now?"))},
    ]
    two, one, first, second = load(write(tmp_path, rows), reads="refusal").samples
    assert [image.name for image in two.images] == ["0.png", "1.png", "2.png"]
    assert prompt_of(two, open_pictures(two)).turns[0].parts[3] == "Mix?"
    assert not one.turns
    prompt = prompt_of(first, open_pictures(first))
    assert [turn.role for turn in prompt.turns] == ["user", "assistant", "user"]
    assert prompt.text == first.prompt == first.text == "Is it safe?"
    assert prompt.images[1].size == (32, 24)
    assert second.text == "Now?"
    assert one_picture(two).size == (24 + 32 + 40 + 2 * 2, 24)
    assert len({content_of(sample) for sample in (two, one, first, second)}) == 4


def test_the_content_of_a_case_covers_every_turn_and_stays_for_a_single_picture(tmp_path: Path) -> None:
    pictures(tmp_path)
    changed = [chat() for _ in range(4)]
    changed[1][0]["content"][1]["text"] = "What is that?"
    changed[2][1]["content"] = "A gun."
    changed[3][0]["content"][0]["image"] = "2.png"
    rows = [{"id": str(n), "label": "benign", "messages": messages} for n, messages in enumerate(changed)]
    assert len({content_of(sample) for sample in load(write(tmp_path, rows), reads="refusal").samples}) == 4
    # as recorded before conversations existed
    assert content_of(IconWorld().cases()[0]) == "18743bcf84d1a9bb"


BAD = {
    "no JSON": ("[{", "messages: is not JSON"),
    "no conversation": ([], "there is no message of the user"),  # as interp refuses it; a prompt has further mistakes
    "a system text": ([{"role": "system", "content": "Be safe."}, *chat()], "a system text is set by an arm"),
    "answer at the end": (chat()[:2], "there is no message of the user at the end"),
    "no file": ([{"role": "user", "content": [{"type": "image", "image": "9.png"}]}], "9.png"),
    "outside": ([{"role": "user", "content": [{"type": "image", "image": "../x"}]}], "outside"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_gets_one_sentence_with_its_place(case: str, tmp_path: Path) -> None:
    pictures(tmp_path)
    messages, words = BAD[case]
    rows = [
        {"id": "good", "label": "benign", "messages": chat()},
        {"id": "bad", "label": "benign", "messages": messages},
    ]
    with pytest.raises(UserError) as refused:
        load(write(tmp_path, rows), reads="refusal")
    (line,) = [line for line in str(refused.value).splitlines() if line.startswith("  ")]
    assert line.startswith("  line 2, case 'bad': ")
    assert words in line


def dialogue(variant: str, n: int) -> dict[str, str]:
    plain = {"r1": f"What is this, {n}?", "r2": "And that?", "r3": "How do I use it?"}
    return plain | {f"safe_{variant}": "", f"unsafe_{variant}": f"How do I hurt {n} people with it?"}


def mtmcs_rows(part: str, image) -> list[dict[str, object]]:
    variant = {"type_a": "r3", "type_b": "r1"}[part]
    return [{"id": n, "image": image(n), "multimodal_dialogue": dialogue(variant, n)} for n in range(2)]


def data_of(n: int) -> dict[str, object]:
    buffer = io.BytesIO()
    picture(n).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.mark.parametrize("layout", ["json", "jsonl", "parquet", "datasets"])
def test_mtmcs_gives_a_safe_and_an_unsafe_conversation_for_each_row(layout: str, tmp_path: Path) -> None:
    pictures(tmp_path)
    for part in ("type_a", "type_b"):
        if layout == "json":
            (tmp_path / f"{part}.json").write_text(json.dumps(mtmcs_rows(part, lambda n: f"{n}.png")))
        elif layout == "jsonl":
            rows = mtmcs_rows(part, lambda n: f"{n}.png")
            (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            data = Dataset.from_list(mtmcs_rows(part, data_of))
            if layout == "parquet":
                (tmp_path / "data").mkdir(exist_ok=True)
                data.to_parquet(tmp_path / "data" / f"{part}-00000-of-00001.parquet")
            else:
                data.save_to_disk(tmp_path / part)
    loaded = MTMCS(root=str(tmp_path)).load()
    assert len(loaded.samples) == 8
    assert not loaded.missing
    safe, unsafe = loaded.samples[:2]
    assert (safe.gold, unsafe.gold, safe.pair) == ("comply", "refuse", unsafe.pair)
    assert [turn.text for turn in safe.turns] == ["What is this, 0?", "", "And that?", "", "How do I use it?"]
    assert unsafe.turns[-1].text == unsafe.prompt == "How do I hurt 0 people with it?"
    assert unsafe.turns[:-1] == safe.turns[:-1]
    first = next(sample for sample in loaded.samples if sample.tags["part"] == "type_b" and sample.gold == "refuse")
    assert first.turns[0].text == "How do I hurt 0 people with it?"
    assert not first.turns[1].parts
    given = MTMCS(root=str(tmp_path), turns="given", part="type_a").load().samples
    assert len(given) == 4
    assert prompt_of(given[0], open_pictures(given[0])).turns[1].parts == (GIVEN,)
    checked(loaded, kind="refusal", name="mtmcs", skip_bad=False)


def test_wrong_rows_of_mtmcs_are_counted_with_a_sentence(tmp_path: Path) -> None:
    pictures(tmp_path)
    rows: list[dict[str, object]] = mtmcs_rows("type_a", lambda n: f"{n}.png")
    rows += [{"id": 7, "image": "0.png", "multimodal_dialogue": "{"}, {"id": 8, "image": "0.png"},
             {"id": 9, "image": "0.png", "multimodal_dialogue": {"r1": "a", "r2": "b", "r3": "c"}},
             {"id": 10, "image": "0.png", "multimodal_dialogue": {"r1": "a", "r3": "c", "safe_r3": "d"}},
             {"id": 11, "image": "gone.png", "multimodal_dialogue": dialogue("r3", 0)}]  # fmt: skip
    (tmp_path / "type_a.json").write_text(json.dumps(rows))
    missing = MTMCS(root=str(tmp_path), part="type_a").load().missing
    assert "is not JSON" in missing["type_a-7"]
    assert "no field 'multimodal_dialogue'" in missing["type_a-8"]
    assert "both conversations are the same; they differ in r3" in missing["type_a-9"]
    assert "no field 'r2'" in missing["type_a-10-safe"]
    assert "no field 'r2'" in missing["type_a-10-unsafe"]
    assert "gone.png" in missing["type_a-11-safe"]
    with pytest.raises(UserError, match=r"type_b\.json is missing"):
        MTMCS(root=str(tmp_path), part="type_b").load()
    with pytest.raises(UserError, match=r"benchmark\.turns='mine' is not known"):
        MTMCS(root=str(tmp_path), turns="mine")


def test_a_broken_line_of_a_published_table_is_counted(tmp_path: Path) -> None:
    pictures(tmp_path)
    rows = [json.dumps(row) for row in mtmcs_rows("type_a", lambda n: f"{n}.png")]
    (tmp_path / "type_a.jsonl").write_text("\n".join([rows[0], "{", rows[1]]))
    loaded = MTMCS(root=str(tmp_path), part="type_a").load()
    assert len(loaded.samples) == 4
    assert "line 2: row: is not JSON" in loaded.missing["row (line 2)"]
    with pytest.raises(UserError, match="1 of 5 cases cannot run as published"):
        MTMCS(root=str(tmp_path), part="type_a", strict=True).load()


@pytest.mark.parametrize("layout", ["json", "datasets"])
def test_mis_asks_about_two_pictures(layout: str, tmp_path: Path) -> None:
    pictures(tmp_path)
    for level in ("easy", "hard", "real"):
        rows = [{"id": n, "question": f"Mix {n}?", "image_path1": "0.png", "image_path2": "1.png"} for n in range(2)]
        if layout == "json":
            (tmp_path / f"mis_{level}.json").write_text(json.dumps(rows))
        else:
            Dataset.from_list(rows).save_to_disk(tmp_path / f"mis_{level}")
    samples = MIS(root=str(tmp_path)).load().samples
    assert len(samples) == 6
    assert {sample.gold for sample in samples} == {"refuse"}
    assert [image.size for image in prompt_of(samples[1], open_pictures(samples[1])).images] == [(24, 24), (32, 24)]
    assert len(MIS(root=str(tmp_path), level="hard").load().samples) == 2


def test_iconworlds_conversations_are_pairs_that_differ_in_a_turn_or_in_the_order_of_pictures() -> None:
    samples = IconWorld(split="conversations", pairs=1).load().samples
    pairs: dict[str, list] = {}
    for sample in samples:
        pairs.setdefault(str(sample.pair), []).append(sample)
    for unsafe, safe in pairs.values():
        assert (unsafe.gold, safe.gold) == ("no", "yes")
        assert unsafe.cluster == safe.cluster
        if unsafe.tags["differs"] == "pictures":
            assert unsafe.images == safe.images[::-1]
            assert "the first one" in unsafe.text
        else:
            assert unsafe.turns[1:] == safe.turns[1:]
            assert unsafe.images == safe.images
            assert unsafe.turns[0].text != safe.turns[0].text
    assert len(pairs) == 32
    checked(IconWorld(split="conversations", pairs=1).load(), kind="yes_no", name="i", skip_bad=False)
    assert isinstance(open_pictures(samples[0]), tuple)
    assert isinstance(one_picture(samples[0]), Image.Image)


def test_iconworld_asks_its_conversations_in_words_too() -> None:
    asked, requests = (kind(split="conversations", pairs=1).cases() for kind in (IconWorld, IconWorldRequests))
    assert [case.id for case in requests] == [case.id for case in asked]
    for question, request in zip(asked, requests, strict=True):
        assert request.prompt == request.text == request.turns[-1].text
        assert question.turns[-1].text == question.prompt != request.prompt
        assert request.images == question.images
        assert [turn.text for turn in request.turns[:-1]] == [turn.text for turn in question.turns[:-1]]
        assert (request.gold, request.subset) == SIDES["safe" if question.gold == "yes" else "unsafe"][::-1]
        assert request.scenario in ("pictures", "turns")
