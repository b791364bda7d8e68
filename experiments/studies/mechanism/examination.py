"""The tools on one model and one run's baseline: asks what is needed, hands arrays to the analyses, gathers the result.

Knows nothing of files, tables or words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.yes_no.results import plain
from experiments.studies.mechanism import measurements, routes
from experiments.studies.mechanism.cases import ARM, Cases, Looked, cases_of, look, other_sentences, twins_of
from experiments.studies.mechanism.departure import parting
from experiments.studies.mechanism.estimates import Resampling
from experiments.studies.mechanism.leanings import PLACE, WILL_REFUSE, WORDS, alarm, angles, fitted, leaning, one_of
from experiments.studies.mechanism.readable import probing
from experiments.studies.mechanism.reversal import PRIOR, shares, undoing
from experiments.types import Sample
from interp.attention_knockout import windows
from interp.directions import Direction
from interp.hooks.residual import Residuals, last_point, residuals
from interp.lens import spoken

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

READ = ("image", "user", "last_user", "verdict")
PATCHED = {"picture": ("image", "user", "template", "verdict"), "sentence": ("user", "template", "verdict")}
ABLATED = (WILL_REFUSE, WORDS)
RANDOM = "a random direction"
PICTURE, SENTENCE = PATCHED


@dataclass(frozen=True)
class Sizes:
    """How much is looked at; see ``experiments.studies.mechanism.study.Mechanism``."""

    limit: int | None
    width: int
    points: int
    prior: str
    batch_size: int
    seed: int
    draws: int


class Examination:
    """One model, and what the baseline answered."""

    def __init__(
        self, vlm: "VLM", samples: Sequence[Sample], records: Sequence[Mapping[str, Any]], sizes: Sizes
    ) -> None:
        self.vlm, self.sizes = vlm, sizes
        vlm.layout.require_image_tokens(vlm.name)
        self.samples = [sample for sample in samples if sample.image is not None]
        self.said = {record["case"]: record["verdict"] for record in records if record["arm"] == ARM}
        self.cases: Cases = cases_of(samples, records)
        self.looked: Looked | None = look(self.cases, records, limit=sizes.limit, seed=sizes.seed)
        self.prompts = prompts_of(self.cases.samples)
        self.points = spaced(last_point(vlm), sizes.points)
        self.layers = [routes.ALL_LAYERS, *(_named(layers) for layers in windows(vlm, sizes.width))]
        self.resampling = Resampling.of(self.cases.clusters, draws=sizes.draws, seed=sizes.seed)

    def estimate(self) -> dict[str, float]:
        """Forwards of one prompt, seconds by one timed batch, and bytes of hidden states that are kept."""
        n, looked = len(self.cases.samples), self.looked
        forwards = n * (2 + len(ABLATED) + 1)
        if looked is not None:
            forwards += len(looked.everyone) * len(measurements.EDGES) * len(self.layers)
            forwards += sum(len(looked.failures) * (len(p) * len(self.points) + 2) for p in PATCHED.values())
        batch = self.prompts[: self.sizes.batch_size]
        width = self.vlm.model.config.get_text_config().hidden_size
        return {
            "forwards": forwards,
            "seconds": forwards * measurements.seconds_a_case(self.vlm, batch),
            "bytes": len(READ) * len(self.points) * n * width * 4,
        }

    def examine(self) -> dict[str, Any]:
        """The contents of mechanism.json but for sentences."""
        sizes, cases, looked = self.sizes, self.cases, self.looked
        subset = None if looked is None else looked.subset
        read = residuals(self.vlm, self.prompts, places=READ, points=self.points, batch_size=sizes.batch_size)
        lens = torch.stack([spoken(self.vlm, read.at(PLACE, p), sizes.batch_size) for p in self.points])
        curves = lens.double().numpy()
        margins = curves[-1]  # the last point of the verdict is what the model says
        parted = parting(curves, cases, subset, self.resampling, points=self.points)
        travel = self._travel(margins)
        directions, missing = fitted(read, cases, self.points, seed=sizes.seed)
        return plain({
            "cases": self._counted(),
            "points": self.points,
            "layers": self.layers,
            "probes": probing(read, cases, margins, self.resampling, seed=sizes.seed),
            **travel,
            "lens": parted,
            "directions": leaning(directions, read, cases, subset, self.resampling),
            "cosines": angles(directions, self.points),
            "missing": missing,
            "alarm": alarm(cases, draws=sizes.draws, seed=sizes.seed),
            **self._undo(margins, read, directions, self._overruled_at(travel, parted)),
        })  # fmt: skip

    def _counted(self) -> dict[str, Any]:
        cases, looked = self.cases, self.looked
        found: dict[str, Any] = {"n": len(cases.samples), "failures": int(cases.failed.sum()),
                                 "clusters": len(set(cases.clusters)), "subset": None}  # fmt: skip
        if looked is not None:
            found |= {"subset": looked.subset, "failures_in_subset": looked.failures_in_run,
                      "successes_in_subset": looked.successes_in_run, "failures_looked_at": len(looked.failures),
                      "successes_looked_at": len(looked.successes), "looked_at": len(looked.everyone)}  # fmt: skip
        return found

    def _travel(self, margins: np.ndarray) -> dict[str, Any]:
        """Knockouts and patching on the cases looked at."""
        found: dict[str, Any] = {"twins": routes.twins_gap(margins, self.cases, twins_of(self.cases), self.resampling)}
        if self.looked is None:
            return found | {"knockout": [], "patching": [], "gaps": {}, "refused": {}}
        some = [self.prompts[index] for index in self.looked.everyone]
        cut = measurements.cut_margins(self.vlm, some, width=self.sizes.width, batch_size=self.sizes.batch_size)
        found["knockout"] = routes.knockouts(
            cut, margins, self.cases, self.looked, self.resampling, edges=measurements.EDGES, layers=self.layers
        )
        found |= {"patching": [], "gaps": {}, "refused": {}}
        for what, others in self._partners(self.looked).items():
            clean = [self.prompts[index] for index in self.looked.failures]
            effects, rows = measurements.patched(self.vlm, clean, others, places=PATCHED[what], points=self.points,
                                               batch_size=self.sizes.batch_size)  # fmt: skip
            found["refused"][what] = len(clean) - len(rows)
            if effects is not None:
                indices = self.looked.failures[rows]
                found["patching"] += routes.patching(effects, indices, self.resampling, other=what)
                found["gaps"][what] = routes.gaps(effects, indices, self.resampling)
        return found

    def _partners(self, looked: Looked) -> "dict[str, list[list[Prompt]]]":
        """For each failure: its twin (same sentence, other picture), and the same picture with other sentences."""
        failures = looked.failures.tolist()
        twins = looked.twin[: len(failures)].tolist()
        tokenizer = self.vlm.tokenizer
        questions = other_sentences(
            self.samples,
            self.said,
            [self.cases.samples[index] for index in failures],
            tokens=lambda text: len(tokenizer(text).input_ids),
            seed=self.sizes.seed,
        )
        own = [self.prompts[index] for index in failures]
        return {
            PICTURE: [[] if twin < 0 else [self.prompts[twin]] for twin in twins],
            SENTENCE: list(measurements.asked_otherwise(own, questions)),
        }

    def _overruled_at(self, travel: Mapping[str, Any], parted: Mapping[str, Any]) -> int:
        """The point at which directions are ablated: where the sentence has arrived at the verdict, else the middle."""
        sentence = [row for row in travel["patching"] if row["other"] == SENTENCE]
        arrived = routes.arrives(sentence, PLACE, self.points) if sentence else None
        for point in (arrived, (parted["pooled"] or {}).get("point")):
            if point:  # point 0 holds the same token in every case
                return int(point)
        return self.points[len(self.points) // 2]

    def _undo(
        self, margins: np.ndarray, read: Residuals, directions: Sequence[Direction], point: int
    ) -> dict[str, Any]:
        sizes = self.sizes
        priors = measurements.priors(self.vlm, self.prompts, sizes.prior, batch_size=sizes.batch_size, seed=sizes.seed)
        share = shares(margins, priors, self.cases.sentences, self.resampling)
        arms = {PRIOR: margins - share["weight"] * priors}
        for name, vector in self._ablated(read, directions, point).items():
            level = float((read.at(PLACE, point) @ vector).mean())
            arms[name] = measurements.margins_without(
                self.vlm, self.prompts, vector, level, point=point, batch_size=sizes.batch_size
            )
        undone = undoing(margins, arms, self.cases.safe, self.resampling)
        return {"prior": share | {"prior": sizes.prior}, "undo": undone, "ablated_at": point}

    def _ablated(self, read: Residuals, directions: Sequence[Direction], point: int) -> dict[str, torch.Tensor]:
        """Unit vectors by name, a random one among them."""
        found = {f"“{name}” ablated": one.vector for name in ABLATED if (one := one_of(directions, name, point))}
        drawn = torch.randn(read.values.shape[-1], generator=torch.Generator().manual_seed(self.sizes.seed))
        return found | {RANDOM + " ablated": drawn / drawn.norm()}


def spaced(last: int, count: int) -> list[int]:
    """At most ``count`` points from 0 to ``last``, both among them, as evenly as whole numbers allow."""
    return sorted({round(float(x)) for x in np.linspace(0, last, min(count, last + 1))})


def _named(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
