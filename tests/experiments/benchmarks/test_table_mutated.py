"""Tables with damage of every kind end in a sentence or in cases that can be asked, never in a traceback."""

import contextlib
import csv
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from experiments.benchmarks.checks import checked
from experiments.benchmarks.images import open_image
from experiments.benchmarks.table import table
from experiments.evaluation.folds import learning_folds
from experiments.runs import record_fields
from experiments.studies.preview import contact_sheet, understood
from experiments.types import Loaded
from interp.errors import UserError

TEN_MIB = 10 * 2**20
VALUES: list[Any] = [
    None, float("nan"), float("inf"), True, False, 0, -1, 10**30, 1.5, "", " ", "\0", "\ud800", "\u202e", "nan", "NULL",
    "=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "<script>alert(1)</script>", "{text}", "{0.__class__}", "%s%n", "'; --",
    [], [1, [2, [3]]], {}, {"bytes": None, "path": None}, {"bytes": "text"}, {"path": 5}, {"path": "../../x.png"}, "🐛",
    "../x.png", "/etc/passwd", "/dev/zero", "a/../../b.png", "file:///etc/passwd", "~/x.png", "pic.png/..", "pic.png\0",
    "x" * 4096, "data:image/png;base64,AAAA", "data:image/png;base64,é", "http://localhost/x.png", "\\\\host\\x", ".",
    "safe", "UNSAFE", "benign", "test", "train", "dev", "a\nb", "a\r\nb", '"', "\ufeff",
]  # fmt: skip
COLUMNS = ("id", "image", "text", "label", "pair", "cluster", "subset", "prompt", "split", "shows", "dangerous",
           "alarming_words")  # fmt: skip


def rows(rng: random.Random) -> list[dict[str, Any]]:
    return [
        {"id": f"c{n}", "image": "pic.png", "text": f"How do I cut {n}?", "label": "unsafe" if n % 2 else "safe",
         "pair": f"p{n // 2}" if rng.random() < 0.5 else None, "subset": rng.choice(["kitchen", "street"])}
        for n in range(8)
    ]  # fmt: skip


def cells(given: list[dict[str, Any]], rng: random.Random) -> None:
    for _ in range(rng.randint(1, 6)):
        rng.choice(given)[rng.choice(COLUMNS)] = rng.choice(VALUES)


def huge(given: list[dict[str, Any]], rng: random.Random) -> None:
    rng.choice(given)[rng.choice(COLUMNS)] = rng.choice('x\n"é;,') * TEN_MIB


def shape(given: list[dict[str, Any]], rng: random.Random) -> None:
    rng.choice(
        [lambda: given.clear(), lambda: given.extend(given), lambda: [row.pop("label", None) for row in given],
         lambda: [row.pop("id", None) for row in given[:3]], lambda: given.append({}), lambda: given.reverse(),
         lambda: [row.update({"": 1, "x" * 99: 2}) for row in given], lambda: [row.pop("image", 0) for row in given]]
    )()  # fmt: skip


def written(given: list[dict[str, Any]], form: str, path: Path, rng: random.Random) -> bytes:
    """The table's bytes; what a form cannot hold is written as text."""
    if form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in given).encode()
    names = list(dict.fromkeys(name for row in given for name in row))
    if form == "csv":
        text = io.StringIO()
        table = csv.writer(text, delimiter=rng.choice(",;\t|"))
        table.writerows([names, *([row.get(name) for name in names] for row in given)])
        return text.getvalue().encode("utf-8", "replace")
    columns = {}
    for name in names:
        values = [row.get(name) for row in given]
        try:
            columns[name] = pyarrow.array(values)
            pyarrow.parquet.write_table(pyarrow.table({name: columns[name]}), path)
        except (pyarrow.ArrowException, UnicodeError, OverflowError):  # of several types, or no text
            texts = [None if value is None else str(value).encode("utf-8", "replace").decode() for value in values]
            columns[name] = pyarrow.array(texts)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path.read_bytes()


def damage(data: bytes, rng: random.Random) -> bytes:
    def flipped() -> bytes:
        found = bytearray(data or b" ")
        for _ in range(rng.choice((1, 4, 40))):
            found[rng.randrange(len(found))] = rng.randrange(256)
        return bytes(found)

    def as_text(coding: str) -> Callable[[], bytes]:
        return lambda: data.decode("utf-8", "replace").encode(coding, "replace")

    whole = lambda: data  # noqa: E731
    cut = lambda: data[: rng.randrange(len(data) + 1)]  # noqa: E731
    inserted = lambda: data[:99] + rng.randbytes(30) + data[99:]  # noqa: E731
    coded = [as_text(name) for name in ("utf-16", "utf-8-sig", "cp1252", "utf-32", "cp037")]
    lined = lambda: data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x0b", b"\0")))  # noqa: E731
    return rng.choice([whole, whole, whole, cut, cut, flipped, flipped, inserted, lined, *coded])()


def mutated(seed: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    rng = random.Random(seed)
    form = rng.choice(("jsonl", "csv", "parquet"))
    given = rows(rng)
    for change in rng.choices((cells, shape, huge), weights=(12, 4, 1), k=rng.randint(0, 2)):
        if given:
            change(given, rng)
    path = folder / f"cases.{form}"
    path.unlink(missing_ok=True)
    data = damage(written(given, form, path, rng), rng)
    path.write_bytes(data)
    options = rng.choice([{}, {}, {"reads": "refusal"}, {"template": "{text}{text}"}, {"columns": {"pair": None}}])
    return path, options


def outcome(path: Path, options: dict[str, Any], *, skip_bad: bool) -> str:
    """What becomes of the table: ``asked`` or ``refused``; whatever else is raised goes on."""
    folder = path.parent / "out"
    try:
        benchmark = table(str(path), **options)
        found: list[Loaded] = []
        for given in (benchmark.load(), benchmark.development()):
            if given is not None:
                found.append(checked(given, kind=benchmark.kind, name="t", skip_bad=skip_bad, folder=folder))
    except UserError as error:
        return "refused" if 10 < len(str(error)) < 10_000 else f"no sentence: {str(error)[:50]!r}"
    for sample in (sample for loaded in found for sample in loaded.samples):
        json.dumps(record_fields.failed(sample, "arm", record_fields.Status.EMPTY, ""), allow_nan=False).encode()
        assert sample.text.strip() and sample.prompt.strip() and sample.id.strip() and sample.cluster  # noqa: PT018
        if sample.image is not None:
            open_image(sample.image)
    samples = found[0].samples
    understood(samples, benchmark.kind, "t").encode("utf-8", "replace")
    contact_sheet(samples, 4)
    with contextlib.suppress(UserError):
        learning_folds(samples)
    return "asked"


def tried(seeds: range, folder: Path) -> Counter[str]:
    Image.new("RGB", (16, 16), "red").save(folder / "pic.png")
    Image.new("RGB", (16, 16), "red").save(folder.parent / "x.png")
    found: Counter[str] = Counter()
    for seed in seeds:
        path, options = mutated(seed, folder)
        try:
            found[outcome(path, options, skip_bad=seed % 3 == 0)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {path.suffix}: {error!r}") from error
    return found


@pytest.mark.long
def test_a_sample_of_mutated_tables(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    found = tried(range(40), tmp_path / "t")
    assert set(found) == {"asked", "refused"}
    assert found["asked"] > 3
    assert found["refused"] > 10
