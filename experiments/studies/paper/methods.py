"""methods.md of a run: who was asked what, how answers were judged, and how differences were decided."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.claims import SMALL
from experiments.report import text
from experiments.report.saved_run import SavedRun
from experiments.runs import analyses
from experiments.runs.provenance import without_paths

OF_THE_RUN = ("seed", "limit", "protocol", "max_new_tokens", "draws", "unsafe_margin", "operating_point", "contrasts",
              "count_empty_as_refusal", "strict", "skip_trained", "batch_size", "batch_tokens")  # fmt: skip
LEFT_OUT = ("command", "started, finished", "benchmark", "judge")  # paths and times of a machine; or said elsewhere
OF_THE_MODEL = ("model", "responses made elsewhere", "counted as", "adapter of", "arm ")  # how these facts begin


def methods(saved: SavedRun, page: Mapping[str, Any]) -> str:
    """Return the page in Markdown; ``page`` is what the report prints (``report.page.context``)."""
    environment, config = saved.environment, saved.environment["config"]
    facts = [(str(name), str(value)) for name, value in page["facts"]]
    about_model = [fact for fact in facts if fact[0].startswith(OF_THE_MODEL)]
    rest = [fact for fact in facts if fact not in about_model and not fact[0].startswith(LEFT_OUT)]
    arms = {name: node for name, node in config["arms"].items() if name in saved.results.arms}
    software = [*(environment.get("versions") or {}).items(), *rest, ("commit", environment.get("commit"))]
    return text.page(
        "methods.md.j2", **{name: page[name] for name in ("question", "headline", "notes")}, results=saved.results,
        design=saved.metrics, environment=environment, facts=dict(facts), about_model=about_model, software=software,
        config=without_paths(config), arms=without_paths(arms), small=SMALL, missing=analyses.missing(saved.directory),
        settings=without_paths({key: config[key] for key in OF_THE_RUN if key in config}),
    )  # fmt: skip
