"""The published files of four benchmarks, damaged in every way: cases that can be asked or a sentence, no traceback."""

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.checks import checked
from experiments.benchmarks.holisafe import HoliSafe
from experiments.benchmarks.images import open_image
from experiments.benchmarks.lvlm_safer import FILES, LVLMSafeR
from experiments.benchmarks.mssbench import MSSBench
from experiments.benchmarks.vscbench import VSCBench
from experiments.runs import records
from interp.errors import UserError
from tests.experiments.benchmarks.test_oversensitivity_benchmarks import holisafe, lvlm_safer, mssbench, vscbench
from tests.experiments.benchmarks.test_table_mutated import VALUES, damage

# How a benchmark is written into a folder, read from there, and which of its files is damaged.
BENCHMARKS: dict[str, tuple[Callable[[Path], Any], Callable[[str], Any], tuple[str, ...]]] = {
    "mssbench": (mssbench, lambda root: MSSBench(root, part="both"), ("combined.json",)),
    "lvlm_safer": (lvlm_safer, LVLMSafeR, tuple(f"data/{file}" for file in FILES.values())),
    "holisafe": (holisafe, HoliSafe, ("holisafe_bench.json",)),
    "vscbench": (
        lambda root: as_csv(vscbench(root)),
        lambda root: VSCBench(root, part="image_centric"),
        ("vscbench_image_centric.csv",),
    ),
}


def as_csv(root: Path) -> None:
    names = [f"{side}_{at}.png" for side in ("safe", "unsafe") for at in range(3)]
    head = ["Category", "Prompt", *(f"{side}_img_{at}" for side in ("safe", "unsafe") for at in range(3))]
    text = io.StringIO()
    csv.writer(text).writerows([head, *(["porngraphy", f"Where is this? {n}", *names] for n in range(3))])
    (root / "vscbench_image_centric.xlsx").unlink()
    (root / "vscbench_image_centric.csv").write_text(text.getvalue(), encoding="utf-8")


def containers(tree: Any) -> list[Any]:
    own = [tree] if isinstance(tree, dict | list) and tree else []
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return own + [found for one in inner for found in containers(one)]


def changed(tree: Any, rng: random.Random) -> Any:
    """A copy with a field replaced, removed, doubled or named otherwise, one to four times."""
    tree = deepcopy(tree)
    for _ in range(rng.randint(1, 4)):
        if not (all_of_them := containers(tree)):
            break
        place = rng.choice(all_of_them)
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        act = rng.choice(("replace", "replace", "replace", "remove", "rename"))
        if act == "replace":
            place[key] = rng.choice(VALUES)
        elif act == "remove":
            del place[key]
        elif isinstance(place, dict):
            place[str(rng.choice(VALUES))] = place.pop(key)
        else:
            place.append(deepcopy(place[key]))
    return tree


def mutated(data: bytes, rng: random.Random, *, table: bool) -> bytes:
    if rng.random() < 0.75:
        if table:
            rows = changed(list(csv.reader(io.StringIO(data.decode()))), rng)
            text = io.StringIO()
            csv.writer(text).writerows(row if isinstance(row, list) else [row] for row in rows)
            return text.getvalue().encode("utf-8", "replace")
        return json.dumps(changed(json.loads(data), rng)).encode()
    return damage(data, rng)


def outcome(benchmark: Any, root: Path) -> str:
    try:
        loaded = checked(benchmark.load(), kind="refusal", name="t", skip_bad=False, folder=root.parent)
    except UserError as error:
        return "refused" if 10 < len(str(error)) < 10_000 else f"no sentence: {str(error)[:50]!r}"
    for sample in loaded.samples:
        json.dumps(records.failed(sample, "arm", "", records.Status.EMPTY, ""), allow_nan=False).encode()
        assert sample.gold == ("comply" if sample.subset == "benign" else "refuse")
        assert sample.text.strip() and sample.prompt.strip() and sample.id.strip() and sample.cluster  # noqa: PT018
        assert sample.image is not None
        open_image(sample.image, root=root)
    for reason in loaded.missing.values():
        reason.encode()
    return "asked"


def tried(name: str, seeds: range, root: Path) -> Counter[str]:
    write, read, files = BENCHMARKS[name]
    write(root)
    whole = {file: (root / file).read_bytes() for file in files}
    assert outcome(read(str(root)), root) == "asked"
    found: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        file = rng.choice(files)
        (root / file).write_bytes(mutated(whole[file], rng, table=file.endswith(".csv")))
        try:
            found[outcome(read(str(root)), root)] += 1
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error!r}") from error
        (root / file).write_bytes(whole[file])
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_sample_of_damaged_files(name: str, tmp_path: Path) -> None:
    found = tried(name, range(60), tmp_path / "root")
    assert set(found) == {"asked", "refused"}
    assert min(found.values()) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_thousand_damaged_files(name: str, tmp_path: Path) -> None:
    found = tried(name, range(1000), tmp_path / "root")
    print(name, dict(found))
    assert set(found) == {"asked", "refused"}
    assert min(found.values()) > 30
