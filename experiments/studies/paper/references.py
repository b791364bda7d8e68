"""references.bib of a run: the software, the model, and of ``references.bib`` here the entries that it used."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.report.saved_run import SavedRun
from experiments.report.tables import latex_text
from experiments.runs.provenance import HUB_ID
from interp.checkpoints.config import ORGANISM

ENTRIES = Path(__file__).with_name("references.bib")
USED_BY = "% used by: "


def bibliography(saved: SavedRun) -> str:
    """Return the entries of what the run used, by ``used``."""
    names, model = used(saved), saved.environment.get("model") or {}
    entries = [_entry("forestlens", title="forestlens", author="{The forestlens contributors}",
                    note=f"commit {saved.environment.get('commit') or 'not recorded'}")]  # fmt: skip
    if model.get("name") and not str(model.get("path") or "").startswith(ORGANISM):
        path, revision = str(model.get("path") or model["name"]), model.get("revision")
        link = rf"\url{{https://huggingface.co/{path}}}" if HUB_ID.fullmatch(path) else ""
        note = f"revision {revision}" if revision else ""
        entries.append(
            _entry("model", title=Path(path).name if path.startswith(("/", "~")) else path, note=note, link=link)
        )
    for paragraph in ENTRIES.read_text(encoding="utf-8").split("\n\n"):
        users, _, entry = paragraph.partition("\n")
        if names & set(users.removeprefix(USED_BY).split(", ")):
            entries.append(entry.strip())
    return "\n\n".join(entries) + "\n"


def used(saved: SavedRun) -> set[str]:
    """Return what entries may name: classes of arms, benchmark and task (also with each setting), judge, software."""
    environment, metrics = saved.environment, saved.metrics
    config, model = environment["config"], environment.get("model") or {}
    nodes = [*config["arms"].values(), *(config.get(key) for key in ("benchmark", "task"))]
    names = {name for node in nodes for name in _classes(node)} | {str(environment.get("judge"))}
    names |= {"transformers", "torch"} if model.get("path") else set()
    names |= {"McNemar"} if saved.results.select(quantity="cases_fixed") else set()
    return names | ({"corrected"} if metrics.get("corrected") else set())


def _classes(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if target := node.get("_target_"):
            yield str(target)
            yield from (f"{target} {key}={value}" for key, value in node.items())
        for value in node.values():
            yield from _classes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _classes(value)


def _entry(key: str, *, title: str, author: str = "", note: str = "", link: str = "") -> str:
    values = {"title": f"{{{latex_text(title)}}}", "author": author, "note": latex_text(note), "howpublished": link}
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in values.items() if value)
    return f"@misc{{{key},\n{lines}\n}}"
