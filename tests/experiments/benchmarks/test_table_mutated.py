"""Tables with damage of every kind end in a sentence or in cases that can be asked, never in a traceback."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from experiments.benchmarks.checks import checked
from experiments.benchmarks.images import open_image
from experiments.benchmarks.table import table
from experiments.runs import record_fields
from experiments.studies.preview import contact_sheet, understood
from interp.errors import UserError

VALUES: list[Any] = [
    None, float("nan"), float("inf"), True, 0, 10**30, 1.5, "", " ", "\0", "\u202e", "NULL", "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>", "{text}", "{0.__class__}", "%s%n", [], [1, [2]], {}, {"bytes": "text"}, {"path": 5},
    "../x.png", "/etc/passwd", "/dev/zero", "file:///etc/passwd", "~/x.png", "pic.png\0", "x" * 4096, "safe", "UNSAFE",
    "data:image/png;base64,AAAA", "http://localhost/x.png", "benign", "test", "train", "a\r\nb", '"', "\ufeff",
]  # fmt: skip
COLUMNS = ("id", "image", "text", "label", "pair", "cluster", "subset", "prompt", "split", "shows", "dangerous")


def damaged(rng: random.Random, path: Path) -> None:
    """Write a table of eight cases with some cells replaced, and some of its bytes."""
    rows: list[dict[str, Any]] = [
        {"id": f"c{n}", "image": "pic.png", "text": f"How do I cut {n}?", "label": "unsafe" if n % 2 else "safe"}
        for n in range(8)
    ]
    for _ in range(rng.randint(0, 3)):
        rng.choice(rows)[rng.choice(COLUMNS)] = rng.choice(VALUES)
    text = "".join(f"{json.dumps(row)}\n" for row in rows) if path.suffix == ".jsonl" else pd.DataFrame(rows).to_csv()
    data = bytearray(text.encode("utf-8", "replace"))
    for _ in range(rng.choice((0, 0, 0, 1, 40))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    coding = rng.choice(("utf-8",) * 5 + ("utf-16", "utf-8-sig", "cp037"))
    path.write_bytes(data if coding == "utf-8" else data.decode("utf-8", "replace").encode(coding, "replace"))


def outcome(path: Path, *, skip_bad: bool) -> str:
    """What becomes of the table: ``asked`` or ``refused``; whatever else is raised goes on."""
    try:
        benchmark = table(str(path))
        samples = checked(benchmark.load(), kind=benchmark.kind, name="t", skip_bad=skip_bad).samples
    except UserError as error:
        return "refused" if 10 < len(str(error)) < 10_000 else f"no sentence: {str(error)[:50]!r}"
    for sample in samples:
        json.dumps(record_fields.failed(sample, "arm", record_fields.Status.EMPTY, ""), allow_nan=False).encode()
        assert all(text.strip() for text in (sample.text, sample.prompt, sample.id, sample.cluster))
        if sample.image is not None:
            open_image(sample.image)
    understood(samples, benchmark.kind, "t").encode("utf-8", "replace")
    contact_sheet(samples, 4)
    return "asked"


@pytest.mark.long
def test_a_sample_of_mutated_tables(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for place in (tmp_path / "t" / "pic.png", tmp_path / "x.png"):
        Image.new("RGB", (16, 16), "red").save(place)
    found: Counter[str] = Counter()
    for seed in range(60):
        path = tmp_path / "t" / f"cases.{('jsonl', 'csv')[seed % 2]}"
        damaged(random.Random(seed), path)
        try:
            found[outcome(path, skip_bad=seed % 3 == 0)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert set(found) == {"asked", "refused"}
    assert min(found.values()) > 10
