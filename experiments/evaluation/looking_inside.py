"""A look inside the model as part of a study: measured once for the same cases and settings, then reported."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from experiments.config import digest
from experiments.evaluation.analyses import NOTE
from experiments.evaluation.study import Study
from experiments.metrics.claims import RULES
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.tables import in_terminal
from experiments.runs.records import now
from experiments.runs.resumption import KEPT, read_object
from experiments.types import Sample
from interp.figures.glyphs import encoded

MOST_DRAWS = 2000  # of the intervals of what looks inside

Result = dict[str, Any]
Presented = tuple[Section, Mapping[str, SectionFigure]]


def look_inside(
    work: Study,
    name: str,
    options: Mapping[str, Any],
    samples: Sequence[Sample],
    examine: Callable[[], Result],
    present: Callable[[Result], Presented],
    *,
    status: str,
    of: object = None,
) -> list[RenderableType]:
    """What to print of a look at ``samples``, whose numbers are in ``<name>.json``.

    Where these are of the same cases and ``options`` they are kept, else ``examine`` finds them, with ``status`` shown
    meanwhile; ``of`` is all else that its forwards depend on. ``present`` makes the report's section of them, and its
    figures by name, which are kept as ``figures/<name>.svg`` and ``.png``.
    """
    folder, file = work.store.path, f"{name}.json"
    cases = digest([work.loaded.manifest, [sample.id for sample in samples]])
    settings = {"rules": RULES, **options, "seed": work.run.seed, "cases": cases}
    result: Result = read_object(folder / file)
    if result.get("settings") != settings:
        found = _examined(work, name, digest([settings, of]), examine, status)
        result = {"settings": settings, **found, "finished": now()}
        work.store.write_json(file, result)
    section, figures = present(result)
    write_section(folder, name, section, figures)
    for one, drawn in figures.items():
        (folder / "figures" / f"{one}.png").write_bytes(encoded(drawn.figure, "png", dpi=150))
    files = f"numbers: {folder / file}; the report has tables and figures"
    return [*map(in_terminal, section.tables), *section.sentences, f"{NOTE}{section.note}", files]


def _examined(work: Study, name: str, of: str, examine: Callable[[], Result], status: str) -> Result:
    """What ``examine`` finds. Batches are the study's, and pictures that several prompts share are encoded once.

    A killed examination goes on where it was.
    """
    from interp.speed.vision_cache import FeatureCache, shared_features

    vlm, kept = work.vlm, work.store.path / KEPT / name
    with (
        shared_features(vlm, FeatureCache(work.run.feature_cache_mib)),
        work.answering.batching(name),
        vlm.batches.resumable(kept, of=digest([of, *vlm.identity])),
        work.console.status(status),
    ):
        return examine()
