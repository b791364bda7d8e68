"""The causal tools on one model and its baseline's answers: run the model, and make rows of what is measured.

The functions at the end run forwards and return arrays on the CPU, in the batches of ``interp.batching``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.evaluation.attention_log import prompts_of
from experiments.runs.results_table import Results, Row
from experiments.studies.mechanism import interventions, probes
from experiments.studies.mechanism.cases import ARM, Selection, answered_cases, other_questions, select, twin_indices
from experiments.studies.mechanism.directions import (
    KINDS,
    POSITION,
    WILL_REFUSE,
    WORDS,
    alarm_rows,
    direction_rows,
    fit_directions,
)
from experiments.studies.mechanism.findings import conclusions
from experiments.studies.mechanism.interventions import PICTURE, SENTENCE, other_words, pointing
from experiments.studies.questions import Questions
from experiments.types import Sample
from interp.hooks.attention import chosen_layers
from interp.hooks.residual import LayerStates, Place, Residuals, edit_residual, last_layer, residuals
from interp.tools.directions import Direction
from interp.tools.knockout import Cut, Edge, cut_scores, windows, with_openings
from interp.tools.lens import lens_margins, sequence_lens
from interp.tools.patching import LEAST_GAP, PatchEffects, misaligned, patch
from interp.tools.untrained import untrained, why_not
from mitigation.prior_correction import prior_margins

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

EDGES: tuple[Edge, ...] = (("image", "verdict"), ("image", "user"), ("user", "verdict"))
READ = ("image", "user", "last_user", "verdict")
CLAIMED_AT = sorted({position for _, position in probes.CLAIMED})
PATCHED: dict[str, tuple[Place, ...]] = {
    PICTURE: ("image", "user", pointing, other_words, "template", "verdict"),
    SENTENCE: ("user", "template", "verdict"),
}


class Examination:
    """One model, and what the baseline answered."""

    def __init__(
        self,
        vlm: "VLM",
        samples: Sequence[Sample],
        records: Sequence[Mapping[str, Any]],
        *,
        failures: int | None,
        layers: int = 9,
        width: int = 1,
        stride: int = 1,
        prior: str = "blank",
        seed: int,
        draws: int,
        questions: Questions | None = None,
    ) -> None:
        """See ``experiments.studies.mechanism.study.Mechanism``."""
        self.vlm, self.prior, self.seed, self.draws = vlm, prior, seed, draws
        self.questions = questions or Questions()
        vlm.module_map.require_image_tokens(vlm.name)
        self.samples = [sample for sample in samples if sample.image is not None]
        self.verdicts = {record["case"]: record["verdict"] for record in records if record["arm"] == ARM}
        self.cases = answered_cases(samples, records)
        self.selection = select(self.cases, records, limit=failures, seed=seed)
        self.scored = any(record.get("protocol") == "score" for record in records)
        self.prompts = prompts_of(self.cases.samples)
        self.layers = spaced_layers(last_layer(vlm), layers)
        self.windows = windows(chosen_layers(vlm, None), width, stride)
        names = (f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in self.windows)
        self.window_names = [interventions.ALL_LAYERS, *names]
        self.estimator = self.cases.resamples(draws=draws, seed=seed)

    def examine(self) -> tuple[dict[str, Any], list[Row]]:
        """Return what mechanism.json says of the examination, and its rows of the results table."""
        cases, selection, estimator = self.cases, self.selection, self.estimator
        subset = None if selection is None else selection.subset
        states = residuals(self.vlm, self.prompts, places=READ, layers=self.layers)
        if self.vlm.metric is None:
            by_layer = [lens_margins(self.vlm, states.select(POSITION, layer)) for layer in self.layers]
            lens = torch.stack(by_layer).double().numpy()
        else:
            lens = sequence_lens(self.vlm, self.prompts, self.vlm.metric, self.layers).double().numpy()
        margins = lens[-1]  # the last layer of the verdict is what the model says
        routes, refused = self._routes(margins)
        arrives = {other: interventions.arrives_at(Results(routes), other, POSITION, self.layers) for other in PATCHED}
        # For ablations: where the sentence has arrived, else the middle. Layer 0 holds the same token in every case.
        ablated = arrives[SENTENCE] or self.layers[len(self.layers) // 2]
        directions, missing = fit_directions(states, cases, self.layers, seed=self.seed)
        why, random = why_not(self.vlm), list[Residuals]()
        with self.questions.guarded("untrained"):
            for number in range(0 if why else probes.UNTRAINED):
                other = untrained(self.vlm, seed=self.seed + number)
                random.append(residuals(other, self.prompts, places=CLAIMED_AT, layers=self.layers))
        why = why or self.questions.unanswered.get("untrained")
        wanted = [*((*key, probes.CLUSTER) for key in product(probes.TARGETS, READ)), *probes.CLAIMS]
        probed, unread = list[Row](), dict[str, str]()
        with self.questions.guarded("probes"):
            probed, unread = probes.probe_rows(states, random, cases, margins, estimator, wanted=wanted, seed=self.seed)
        rows = [
            *probed,
            *routes,
            *probes.lens_rows(lens, self.layers, cases, estimator),
            *direction_rows(directions, states, cases, subset, estimator),
            *alarm_rows(cases, draws=self.draws, seed=self.seed),
            *self._reversal(margins, states, directions, ablated),
        ]
        results = Results(rows)
        counts = {"n": len(cases.samples), "failures": int(cases.failed.sum()), "clusters": len(set(cases.clusters)),
                  "protocol": "score" if self.scored else "generate"}  # fmt: skip
        details = {
            "cases": counts | ({"subset": None} if selection is None else selection.counts()),
            "layers": self.layers,
            "unread": unread,
            "no_untrained": why,
            "refused": refused,
            "least_gap": LEAST_GAP,
            "arrives": arrives,
            "carried_from": probes.holds_from(results, "truth", POSITION, self.layers),
            "missing": missing,
            "prior": self.prior,
            "ablated_at": ablated,
            "conclusions": conclusions(results, self.layers, failed=selection is not None),
            **self.questions.details(),
        }
        return details, rows

    def _routes(self, margins: np.ndarray) -> tuple[list[Row], dict[str, int]]:
        """Cut and patch the selected cases, and count the failures without a partner by what is exchanged."""
        twins = twin_indices(self.cases, seed=self.seed)
        rows = interventions.twin_rows(margins, self.cases, twins, self.estimator)
        refused: dict[str, int] = {}
        if self.selection is None:
            return rows, refused
        selected = [self.prompts[index] for index in self.selection.everyone]
        with self.questions.guarded("knockout"):
            cut = cut_margins(self.vlm, selected, windows=self.windows)
            rows += interventions.knockout_rows(cut, margins, self.cases, self.selection, self.estimator, edges=EDGES,
                                                windows=self.window_names)  # fmt: skip
        clean = [self.prompts[index] for index in self.selection.failures]
        for other, partners in self._partners(self.selection).items():
            with self.questions.guarded(f"patching_{other}"):
                places = PATCHED[other]
                effects, partnered = patch_effects(self.vlm, clean, partners, positions=places, layers=self.layers)
                refused[other] = len(clean) - len(partnered)
                if effects is not None:
                    members = self.selection.failures[partnered]
                    rows += interventions.patching_rows(effects, members, self.estimator, other=other)
        return rows, refused

    def _partners(self, selection: Selection) -> "dict[str, list[list[Prompt]]]":
        """For each failure: its twin (same sentence, other picture), and the same picture with other sentences."""
        failures = selection.failures.tolist()
        twins = selection.twin[: len(failures)].tolist()
        selected = [self.cases.samples[index] for index in failures]
        questions = other_questions(self.samples, self.verdicts, selected, seed=self.seed,
                                    tokens=lambda text: len(self.vlm.tokenizer(text).input_ids))  # fmt: skip
        return {
            PICTURE: [[] if twin < 0 else [self.prompts[twin]] for twin in twins],
            SENTENCE: [
                [replace(self.prompts[index], text=text) for text in texts]
                for index, texts in zip(failures, questions, strict=True)
            ],
        }

    def _reversal(
        self, margins: np.ndarray, states: Residuals, directions: Sequence[Direction], layer: int
    ) -> list[Row]:
        arms: dict[str, np.ndarray] = {}
        rows: list[Row] = []
        with self.questions.guarded("reversed"):
            priors = prior_margins_of(self.vlm, self.prompts, self.prior, seed=self.seed)
            share, rows = interventions.prior_rows(margins, priors, self.cases.questions, self.estimator)
            arms[interventions.PRIOR] = margins - share.weight * priors
        fitted = {(direction.name, direction.layer, direction.kind): direction.vector for direction in directions}
        drawn = torch.randn(states.values.shape[-1], generator=torch.Generator().manual_seed(self.seed))
        vectors = {f"“{name}”": fitted.get((name, layer, KINDS[0])) for name in (WILL_REFUSE, WORDS)}
        with self.questions.guarded("ablation"):
            for name, vector in (vectors | {"a random direction": drawn / drawn.norm()}).items():
                if vector is not None:
                    level = float((states.select(POSITION, layer) @ vector).mean())
                    arms[f"{name} ablated"] = ablated_margins(self.vlm, self.prompts, vector, level, layer=layer)
        return [*rows, *interventions.reversal_rows(margins, arms, self.cases.safe, self.estimator)]


def spaced_layers(last: int, count: int) -> list[int]:
    """Return at most ``count`` layers from 0 to ``last``, both included, as evenly as whole numbers allow."""
    return sorted({round(float(x)) for x in np.linspace(0, last, min(count, last + 1))})


def cut_margins(
    vlm: "VLM", prompts: "Sequence[Prompt]", *, windows: Sequence[Sequence[int]], edges: Sequence[Edge] = EDGES
) -> Float[np.ndarray, "edge one_and_window row"]:
    """Return margins with each of ``edges`` cut in all layers, and in each of ``windows`` of them.

    Edges to the verdict are cut at the tokens of refusal openings too (``interp.sequence_metric``).
    """
    cuts = [Cut(with_openings(edge), layers) for edge in edges for layers in (None, *windows)]

    def margins(indices: list[int]) -> Tensor:
        batch = [prompts[index] for index in indices]
        return cut_scores(vlm, batch, vlm.encode(batch), cuts)[:, 1:]

    scores = vlm.batches.measured(prompts, margins)
    return scores.T.double().numpy().reshape(len(edges), 1 + len(windows), len(prompts))


def patch_effects(
    vlm: "VLM", clean: "Sequence[Prompt]", others: "Sequence[Sequence[Prompt]]", *, positions: Sequence[Place],
    layers: Sequence[int],
) -> tuple[PatchEffects | None, list[int]]:  # fmt: skip
    """Patch each prompt with the first of its ``others`` that aligns with it.

    Returns:
        The effects (None if no prompt has an aligned one), and the prompts that have one.
    """
    partner: dict[int, Prompt] = {}
    for index, candidates in enumerate(others):
        for other in candidates:
            if not misaligned(vlm, [clean[index]], [other], places=positions)[0]:
                partner[index] = other
                break
    if not partner:
        return None, []
    aligned = [clean[index] for index in partner]
    return patch(vlm, aligned, list(partner.values()), places=positions, layers=layers), list(partner)


def prior_margins_of(vlm: "VLM", prompts: "Sequence[Prompt]", prior: str, *, seed: int) -> np.ndarray:
    """Return the margin that each sentence has without its picture (``mitigation.prior_correction``)."""

    def margins(indices: list[int]) -> Tensor:
        return prior_margins(vlm, [prompts[index] for index in indices], prior, seed=seed)

    return vlm.batches.measured(prompts, margins).double().numpy()


def ablated_margins(
    vlm: "VLM", prompts: "Sequence[Prompt]", vector: Float[Tensor, " width"], level: float, *, layer: int
) -> Float[np.ndarray, " row"]:
    """Return margins with the verdict's state at ``layer`` set to ``level`` along a unit ``vector`` in all cases.

    If the level is the mean of all cases, only what differs from case to case is gone, and the states stay in their
    usual range. Projecting to zero would move every case by the same large step (Marshall et al. 2024, arXiv
    2411.09003).
    """

    def edit(here: LayerStates) -> Tensor:
        where = here.indices("verdict", "generated")
        edited = here.hidden.clone()
        states = edited[where].float()
        unit = vector.to(states)
        edited[where] = (states + (level - states @ unit)[:, None] * unit).to(edited.dtype)
        return edited

    with edit_residual(vlm, edit, layers=[layer]):
        return vlm.batches.scores(prompts).double().numpy()
