"""A look inside the model as part of a study: measured once for the same cases and settings, then reported."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import RenderableType

from experiments.config import digest
from experiments.evaluation.study import Study
from experiments.metrics.findings import RULES
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.table import terminal
from experiments.runs.records import now
from experiments.runs.resumption import KEPT, read_object


def cached_result(
    work: Study,
    name: str,
    settings: Mapping[str, Any],
    examine: Callable[[], dict[str, Any]],
    *,
    status: str,
    of: object = None,
    within: str | None = None,
) -> dict[str, Any]:
    """What ``examine`` finds, kept in ``<name>.json``, or under ``name`` in the file of ``within``.

    What is there of the same ``settings`` and rules is given back. Batches are the study's, pictures that several
    prompts share are encoded once, and a killed examination goes on where it was: ``of`` is all else that its forwards
    depend on. ``status`` is shown meanwhile.
    """
    from interp.speed.vision_cache import FeatureCache, shared_features

    store, vlm = work.store, work.vlm
    settings = {"rules": RULES, **settings}
    path = store.path / f"{within or name}.json"

    def there() -> dict[str, Any]:
        found: dict[str, Any] = read_object(path)
        return found if within is None else found.get(name) or {}

    if (kept := there()).get("settings") == settings:
        return kept
    with (
        shared_features(vlm, FeatureCache(work.run.feature_cache_mib)),
        work.answering.batching(name),
        vlm.batches.resumable(
            store.path / KEPT / name, of=digest([settings, of, vlm.name, vlm.revision, str(vlm.dtype)])
        ),
    ):
        with work.console.status(status):
            result = {"settings": settings, **examine(), "finished": now()}
        store.write_json(path.name, result if within is None else read_object(path) | {name: result})
    return result


def shown(
    work: Study, name: str, section: Section, figure: SectionFigure, *, dpi: int = 96
) -> tuple[list[RenderableType], str]:
    """Writes the section for the report, its figure also as ``figures/<name>.png``; tables to print, and that file."""
    write_section(work.store.path, name, section, {name: figure})
    picture = work.store.path / "figures" / f"{name}.png"
    figure.figure.savefig(picture, dpi=dpi)
    return [*map(terminal, section.tables)], str(picture)
