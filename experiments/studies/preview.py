"""A benchmark's cases as a contact sheet with what was understood of them; and its model exported for vLLM."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageOps

from experiments.api.engine_model import write_engine_model
from experiments.benchmarks.checks import ASKED, BENCHMARK, WORKERS, examine, message, shared
from experiments.benchmarks.images import BadImage, one_picture
from experiments.config import Run
from experiments.evaluation.cases import limited
from experiments.metrics.bootstrap import FEWEST
from experiments.metrics.case_groups import (
    TIMES,
    Shared,
    coded,
    contradiction,
    drawn_pairs,
    family_names,
    is_safe,
    sentence_codes,
)
from experiments.report.tables import say
from experiments.runs.store import open_run
from experiments.types import Kind, Loaded, Sample
from interp.errors import UserError

CELL = 150  # pixels a side of a picture on the sheet
CAPTION = 58  # pixels below it
GAP = 8
SAFE, UNSAFE, GREY = (0, 90, 160), (170, 60, 0), (200, 200, 200)
GOLD_COLOUR = {"yes": SAFE, "comply": SAFE, "no": UNSAFE, "refuse": UNSAFE}
LABELS = {"yes": "safe", "no": "unsafe", "comply": "benign", "refuse": "harmful"}
MOST_LISTED = 12  # subsets, in words
PROMPTS = 3  # shown in full
FAMILIES, WORDINGS = 3, 2  # of sentences, as examples
PAIRS, PAIRS_FILE = 5, "pairs.csv"  # of those drawn, as examples; all of them
LONGEST_PROMPT = 2000


def run(run: Run, *, columns: int, rows: int) -> None:
    """Write contact_sheet.png and understood.txt into a run directory named ``preview``, and print the text.

    Pairs that are drawn, where the benchmark names none, are in pairs.csv. The sheet shows the first cases, subsets by
    turns. Cases that fail their checks are listed at the end.

    Raises:
        UserError: no case can be shown, or some fail their checks and ``benchmark.skip_bad`` is not set.
    """
    if columns < 1 or rows < 1:
        raise UserError(f"task.columns={columns}, task.rows={rows}: both must be at least 1")
    name, kind = run.benchmark.name, run.benchmark.kind
    usable, bad = _examined(run, run.benchmark.load(), name)
    if not usable:
        raise UserError(bad.strip() or f"benchmark {name} has no case to show; look at its options in conf/benchmark")
    if (development := run.benchmark.development()) is not None:
        to_learn_from, worse = _examined(run, development, f"{name}, development split", usable)
        bad += worse
    lines = understood(usable, kind, name, 0 if development is None else len(to_learn_from), seed=run.seed) + bad
    samples = limited(usable, run.limit or columns * rows)
    with open_run(run.output_root, "preview", run.config, run.config_hash, fresh=True) as store:
        path = store.path / "contact_sheet.png"
        contact_sheet(samples, columns).save(path)
        if drawn := _drawn(usable, run.seed):
            members = [(same, usable[a].id, usable[b].id) for same, pairs in drawn.items() for a, b in pairs]
            table = pd.DataFrame(members, columns=["shared", "safe", "unsafe"])
            table.to_csv(store.path / PAIRS_FILE, index=False, errors="replace")
        (store.path / "understood.txt").write_text(lines, encoding="utf-8", errors="replace")
        say(lines, f"{_so_many(samples)}: {path}")
    if bad and not run.skip_bad:
        raise UserError(f"some cases of {name} cannot be asked; the list above says why")


def _so_many(samples: Sequence[Sample]) -> str:
    return f"{len(samples)} case{'s' * (len(samples) != 1)}"


def _examined(run: Run, given: Loaded, name: str, tested: Sequence[Sample] = ()) -> tuple[list[Sample], str]:
    """Return the cases that can be asked, or learned from if others are ``tested``; and what is wrong with the rest."""
    usable, problems = examine(given, run.benchmark.kind)
    both = shared(usable, tested, clusters=not getattr(run.benchmark, "clusters_recur", False))
    text = ""
    for faults, total, words in (
        (problems, len(given.samples) + len(given.problems), ASKED),
        (list(both.values()), len(usable), BENCHMARK),
    ):
        if faults:
            text += f"{message(name, faults, total, words, most=None)}\n{words.way_out}\n"
    return [sample for place, sample in enumerate(usable) if place not in both], text


def understood(samples: Sequence[Sample], kind: Kind, name: str, development: int = 0, *, seed: int = 0) -> str:
    """Return what was understood of the cases: labels, subsets, clusters, pairs, sentences, the first prompts in full.

    ``development`` is the number of further cases to learn and calibrate on. ``seed`` draws the pairs.
    """
    answer = "Yes or No (is it safe?)" if kind == "yes_no" else "an open answer (is it refused?)"
    golds = Counter(LABELS[sample.gold] for sample in samples)
    clusters = Counter(sample.cluster for sample in samples)
    pictures = sum(sample.image is not None for sample in samples)
    different = len({sample.picture for sample in samples if sample.picture})
    lines = [
        f"{name}: {len(samples)} cases, answered by {answer}",
        f"  labels: {_counted(golds)}",
        f"  subsets: {_counted(Counter(map(own_subset, samples)))}",
        f"  pictures: {pictures} cases have one" + (f", {different} different" if different else ""),
        f"  clusters: {len(clusters)} (cases that are resampled together; the largest has {max(clusters.values())})",
        *_pairs(samples, seed),
        *_families(samples),
        f"  to learn and calibrate on: {f'{development} further cases' if development else 'no further cases'}",
    ]
    for number, sample in enumerate(limited(samples, PROMPTS)[:PROMPTS], 1):
        prompt = sample.prompt[:LONGEST_PROMPT] + (" ..." if len(sample.prompt) > LONGEST_PROMPT else "")
        lines += [f"prompt {number}, case {sample.id[:60]} ({LABELS[sample.gold]}):", textwrap.indent(prompt, "    ")]
    return "\n".join(lines) + "\n"


def _drawn(samples: Sequence[Sample], seed: int) -> dict[Shared, list[tuple[int, int]]]:
    """Return the pairs that are drawn, by what their members share; none if the benchmark names its own."""
    if any(sample.pair for sample in samples):
        return {}
    both: tuple[Shared, ...] = ("sentence", "picture")
    return {same: drawn_pairs(samples, same, seed=seed) for same in both}


def _pairs(samples: Sequence[Sample], seed: int) -> list[str]:
    """Return how many pairs the benchmark names; if none, how many there are and which are drawn."""
    if named := {sample.pair for sample in samples if sample.pair}:
        return [f"  pairs: {len(named)}"]
    scored = [sample for sample in samples if sample.subset != "control"]
    if not scored:
        return ["  pairs: 0"]
    safe = np.array([is_safe(sample) for sample in scored])
    codes = {
        "sentence": sentence_codes([sample.text for sample in scored], [sample.tags for sample in scored]),
        "picture": coded([sample.picture or sample.id for sample in scored]),
    }
    lines = []
    for same, drawn in _drawn(samples, seed).items():
        count = int(np.bincount(codes[same], safe) @ np.bincount(codes[same], ~safe))
        differing = "pictures" if same == "sentence" else "sentences"
        lines.append(f"  pairs of {differing} (one {same}, opposite labels): {count}")
        if drawn:
            ids = ", ".join(f"{samples[a].id[:40]} / {samples[b].id[:40]}" for a, b in drawn[:PAIRS])
            rest = f" … (all in {PAIRS_FILE})" if len(drawn) > PAIRS else ""
            lines.append(f"    to patch {len(drawn)}, no case in more than {TIMES} (safe / unsafe): {ids}{rest}")
    return lines


def _families(samples: Sequence[Sample]) -> list[str]:
    """Return how many families of sentences there are, how large, what follows, and the largest as examples."""
    scored = [sample for sample in samples if sample.subset != "control"]
    texts, tags = [sample.text for sample in scored], [sample.tags for sample in scored]
    names = family_names(texts, tags)
    sizes = Counter(names)
    if len(sizes) == len(scored):
        lines = [f"  sentences: {len(sizes)}, each case has its own"]
    else:
        few = f"fewer than {FEWEST}, so results hold only for these sentences"
        scope = few if len(sizes) < FEWEST else "a sample, so intervals allow for other sentences"
        each = " to ".join(map(str, sorted({min(sizes.values()), max(sizes.values())})))
        lines = [f"  sentences: {len(sizes)} ({each} cases each): {scope}"]
        for name, size in sizes.most_common(FAMILIES):
            worded = list(dict.fromkeys(text for text, family in zip(texts, names, strict=True) if family == name))
            examples = " / ".join(textwrap.shorten(text, 60, placeholder=" …") for text in worded[:WORDINGS])
            more = f" and {len(worded) - WORDINGS} more wordings" if len(worded) > WORDINGS else ""
            lines.append(f"    {size} cases: {examples}{more}")
        lines.append("    (if these are not the sentences, name them in a column template)")
    if alike := contradiction(texts, tags):
        named = " / ".join(textwrap.shorten(text, 80, placeholder=" …") for text in alike)
        lines.append(f"  warning: the column template separates texts that are alike: {named}")
    return lines


def own_subset(sample: Sample) -> str:
    """Return the subset by its name in the user's table, else the subset of its results."""
    return sample.subset_name or sample.subset


def _counted(counts: Counter[str]) -> str:
    listed = [f"{count} {name[:60]}" for name, count in counts.most_common(MOST_LISTED)]
    return ", ".join(listed) + (f" and {len(counts) - MOST_LISTED} more" if len(counts) > MOST_LISTED else "")


def contact_sheet(samples: Sequence[Sample], columns: int) -> Image.Image:
    """Return pictures in ``columns`` columns, each with subset, right answer and sentence; grey without a picture."""
    rows = -(-len(samples) // columns)
    sheet = Image.new("RGB", (columns * (CELL + GAP) + GAP, rows * (CELL + CAPTION + GAP) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    with ThreadPoolExecutor(WORKERS) as pool:
        cells = list(pool.map(_cell, samples))
    for index, (sample, cell) in enumerate(zip(samples, cells, strict=True)):
        left = GAP + (index % columns) * (CELL + GAP)
        top = GAP + (index // columns) * (CELL + CAPTION + GAP)
        sheet.paste(cell, (left, top))
        draw.text((left, top + CELL + 2), f"{own_subset(sample)}: {sample.gold}"[:30], fill=GOLD_COLOUR[sample.gold])
        sentence = "\n".join(textwrap.wrap(sample.text, 26)[:3])
        draw.multiline_text((left, top + CELL + 15), sentence, fill="black", spacing=2)
    return sheet


def _cell(sample: Sample) -> Image.Image:
    try:
        image = None if sample.image is None else one_picture(sample)
    except BadImage:
        image = None
    return Image.new("RGB", (CELL, CELL), GREY) if image is None else ImageOps.pad(image, (CELL, CELL), color=GREY)


@dataclass(frozen=True)
class Export:
    """The task: write the model to the folder ``to``, as vLLM loads it, with a LoRA ``adapter`` merged."""

    to: str | None = None
    adapter: str | None = None

    def __call__(self, run: Run) -> None:
        """Write the folder, and print where it is.

        Raises:
            UserError: no place to write to, or it cannot be written.
        """
        if self.to is None:
            raise UserError("task.to: has no value; give a new folder on the command line: task.to=<folder>")
        adapter = None if self.adapter is None else Path(self.adapter)
        serve = write_engine_model(run.weights, Path(self.to), adapter=adapter)
        say(f"model: {self.to}", f"serve it: {serve}")
