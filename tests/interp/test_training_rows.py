"""Hashes of training rows: copies of a picture are known again, other pictures are not, and nothing else is kept."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from interp.prompt import Prompt
from interp.tensor_file import FILE, TrainingRows, picture_hash, prompt_hash, read_rows, row_hash, text_hash
from tests.tiny import picture


def drawn(count: int) -> list[Image.Image]:
    return [open_image(sample.image) for sample in IconWorld().load().samples[:count] if sample.image is not None]


def jpeg(image: Image.Image, quality: int = 75) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream)


def resized(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)))


COPIES: list[Callable[[Image.Image], Image.Image]] = [
    lambda image: image.convert("RGBA"),
    lambda image: jpeg(image, 95),
    lambda image: jpeg(image, 60),
    lambda image: resized(image, 0.5),
    lambda image: resized(image, 2),
    lambda image: jpeg(resized(image, 0.7)),
]


def rows_of(*rows: tuple[str, str, Image.Image | None]) -> TrainingRows:
    return TrainingRows.from_hashes(row_hash(*row) for row in rows)


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_is_known_again(copied: Callable[[Image.Image], Image.Image]) -> None:
    pictures = drawn(40)
    rows = rows_of(*(("Is it safe?", "", image) for image in pictures))
    for image in pictures:
        alone = rows_of(("is it SAFE", "", image))
        case = row_hash("Is it  safe!", "", copied(image))
        assert alone.overlap([case]) == rows.overlap([case]) == [True]


def test_a_conversation_is_known_by_all_its_messages_and_pictures() -> None:
    first, second, third = drawn(3)

    def chat(
        *pictures: Image.Image, texts: tuple[str, ...] = ("What is this?", "A ball.", "Can I throw it?")
    ) -> Prompt:
        before = [{"type": "image", "image": image} for image in pictures[:1]]
        after = [{"type": "image", "image": image} for image in pictures[1:]]
        return Prompt(messages=[
            {"role": "user", "content": [*before, {"type": "text", "text": texts[0]}]},
            {"role": "assistant", "content": texts[1]},
            {"role": "user", "content": [*after, {"type": "text", "text": texts[2]}]},
        ])  # fmt: skip

    row = chat(first, second)
    rows = TrainingRows.from_prompts([row])
    changes = [
        chat(first, third), chat(third, second), chat(second, first), chat(first),
        chat(first, second, texts=("Where is this?", "A ball.", "Can I throw it?")),
        chat(first, second, texts=("What is this?", "A ball.", "Can I eat it?")),
        Prompt("Can I throw it?", first),
    ]  # fmt: skip
    assert rows.overlap([prompt_hash(row), prompt_hash(chat(jpeg(first, 60), resized(second, 2)))]) == [True, True]
    assert not any(rows.overlap(map(prompt_hash, changes)))
    other = prompt_hash(chat(first, second, texts=("What is this?", "A toy.", "Can I throw it?")))
    assert other != prompt_hash(row)
    assert rows.overlap([other]) == [True]  # the same questions, whatever was answered
    assert prompt_hash(Prompt("Is it safe?", first, request="it")) == row_hash("Is it safe?", "it", first)


def test_text_and_picture_of_one_row_make_a_case() -> None:
    rows = rows_of(("Safe? cut bread", "cut bread", picture(1)), ("Safe? swim", "", picture(2)), ("a", "", None))
    cases = {
        ("Safe? cut bread", "", 1): True,
        ("Another question: cut bread", "Cut bread.", 1): True,  # another template
        ("Safe? cut bread", "", 2): False,  # both are known, of two rows
        ("Safe? fly", "fly", 1): False,  # the picture alone
        ("Safe? cut bread", "cut bread", 3): False,  # the text alone
        ("a", "", None): True,
        ("Safe? swim", "", None): False,
        ("a", "", 3): False,
    }
    asked = [row_hash(text, about, None if at is None else picture(at)) for text, about, at in cases]
    assert rows.overlap(asked) == list(cases.values())
    assert rows_of().overlap(asked) == [False] * len(cases)


def test_plain_colours_are_told_apart() -> None:
    colours = ["white", "black", "red", "blue", (40, 10, 90), (80, 10, 90)]
    hashes = [picture_hash(Image.new("RGB", (24, 18), colour)) for colour in colours]
    rows = rows_of(("x", "", Image.new("RGB", (24, 18), colours[0])), ("x", "", None))
    assert len(set(hashes)) == len(colours)
    assert rows.overlap([row_hash("x", "", Image.new("RGB", (24, 18), one)) for one in colours]) == (
        [True] + [False] * 5
    )


def test_words_count_and_not_how_they_are_written() -> None:
    assert text_hash("Cut the bread!") == text_hash("  cut\tthe BREAD ") != text_hash("cut the breads")
    assert text_hash("ﬁne") == text_hash("FINE")  # Unicode's ligature
    assert text_hash("?!") != text_hash("")


def test_a_record_holds_hashes_alone(tmp_path: Path) -> None:
    rows = rows_of(*((f"secret {number}", "", picture(number)) for number in (1, 1, 2, 3)))
    rows.write(tmp_path)
    text = (tmp_path / FILE).read_text()
    assert "secret" not in text
    assert len(json.loads(text)["rows"]) == 3 * 48
    assert read_rows(tmp_path) == rows
    for broken in ("", "[]", '{"rows": "AAAA"}', '{"rows": 3}'):
        (tmp_path / FILE).write_text(broken)
        assert read_rows(tmp_path) is None
    assert read_rows(tmp_path / "absent") is None
