"""Records of the conditions → the contents of stages.json."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import Answer, plain
from experiments.metrics.paired import Difference, Spread, rate_floor, simultaneous
from experiments.metrics.statistical_tests import holm, mcnemar, wilson
from experiments.studies.reasoning_stages.conditions import ASKED, CONDITIONS, CautiousCases, met_caution
from experiments.studies.reasoning_stages.oracles import Perception
from experiments.types import Kind, Sample

STAGES = ("perception", "intent", "decision")
Caution = Mapping[str, bool]  # case → whether it met caution
Samples = Mapping[str, Sample]  # by id


def summarise(
    chosen: CautiousCases,
    records: Sequence[Mapping[str, Any]],
    perceived: Mapping[str, Perception],
    kind: Kind,
    *,
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """The contents of stages.json but for what names files.

    Args:
        records: of every condition; their ``arm`` is the condition.
        perceived: by case, what its caption was; of failures and matched cases.
    """
    found = _by_condition(records, kind)
    groups = {"failures": [s.id for s in chosen.failures], "matched": [s.id for s in chosen.matched]}
    samples = {sample.id: sample for sample in (*chosen.failures, *chosen.matched)}
    tables = {
        group: caution_table(found, cases, samples, seed=seed, draws=draws) for group, cases in groups.items() if cases
    }
    return plain({
        "cases": {"failures": len(chosen.failures), "failures_in_run": chosen.failures_in_run,
                  "safe_in_run": chosen.safe_in_run, "matched": len(chosen.matched)},
        "perception": {group: _perception(perceived, cases, samples) for group, cases in groups.items()},
        "conditions": CONDITIONS,
        "caution": tables,
        "by_perception": {
            kind_: _rates(found, [case for case in groups["failures"] if perceived.get(case) == kind_], samples)
            for kind_ in ("right", "misperceived", "refused")
        },
        "stages": stage_counts(found, groups["failures"], perceived, samples),
    })  # fmt: skip


def _by_condition(records: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {}
    for record in records:
        if (met := met_caution(record, kind)) is not None:
            found.setdefault(record["arm"], {})[record["case"]] = met
    return found


def _perception(perceived: Mapping[str, Perception], cases: Sequence[str], samples: Samples) -> dict[str, Any]:
    known = [case for case in cases if case in perceived]
    counted, n, clusters = Counter(perceived[case] for case in known), len(known), _clusters(known, samples)
    return {"n": n, **{name: {"count": counted[name], "rate": counted[name] / n if n else None,
                              "interval": wilson(counted[name], n, clusters=clusters)}
                       for name in ("right", "misperceived", "refused")}}  # type: ignore[index]  # fmt: skip


def _rates(found: Mapping[str, Caution], cases: Sequence[str], samples: Samples) -> dict[str, Any]:
    return {name: _rate(found.get(name, {}), cases, samples) for name in CONDITIONS} if cases else {}


def _rate(known: Caution, cases: Sequence[str], samples: Samples) -> dict[str, Any]:
    both = [case for case in cases if case in known]
    met, n = sum(known[case] for case in both), len(both)
    return {"rate": met / n if n else None, "interval": wilson(met, n, clusters=_clusters(both, samples)), "n": n,
            "n_of": len(cases)}  # fmt: skip


def _clusters(cases: Sequence[str], samples: Samples) -> int:
    return len({samples[case].cluster for case in cases})


def caution_table(
    found: Mapping[str, Caution], cases: Sequence[str], samples: Samples, *, seed: int, draws: int
) -> dict[str, Any]:
    """Rate of caution a condition, and its paired change from the cases as asked.

    Over conditions the intervals are simultaneous, and p is corrected by Holm's method.
    """
    table = {name: _rate(found.get(name, {}), cases, samples) for name in CONDITIONS}
    compared = {
        name: _change(found[ASKED], found[name], cases, samples, seed=seed, draws=draws)
        for name in CONDITIONS
        if name != ASKED and name in found and ASKED in found
    }
    simultaneous(compared.values())
    entries = {name: one.entry for name, one in compared.items() if one.entry is not None}
    for entry, adjusted in zip(entries.values(), holm([entry["p"] for entry in entries.values()]), strict=True):
        entry["p_holm"] = adjusted
    return {name: row | {"change": entries.get(name)} for name, row in table.items()}


def _change(
    before: Caution, after: Caution, cases: Sequence[str], samples: Samples, *, seed: int, draws: int
) -> Difference:
    """The change with its flips; a value of None without a case that has both."""
    both = [case for case in cases if case in before and case in after]
    was, now = (np.array([known[case] for case in both], dtype=bool) for known in (before, after))
    flips = mcnemar(~was, ~now)  # "fixed": no longer met with caution
    counted = {"freed": flips.fixed, "caught": flips.broken, "p": flips.p}
    if not both:
        none = {"value": None, "low": None, "high": None, "clusters": 0, "n": 0, "needed": None}
        entry = none | {"statement": Answer.CANNOT_TELL.value} | counted
        return Difference(entry, Spread(None, 0), np.full(draws, np.nan))
    compared = [samples[case] for case in both]
    resamples = Resamples.of_cases([one.cluster for one in compared], [one.text for one in compared],
                                   [one.tags for one in compared], draws=draws, seed=seed)  # fmt: skip
    drawn = resamples.drawn(lambda some: some.mean(now.astype(float) - was))
    floor, n = rate_floor(len(both)), len(both)
    found = resamples.difference(float(was.mean()), float(now.mean()), drawn, [None], n, floor=floor)
    return found._replace(entry=(found.entry or {}) | counted)


def stage_counts(
    found: Mapping[str, Caution], cases: Sequence[str], perceived: Mapping[str, Perception], samples: Samples
) -> dict[str, dict[str, Any]]:
    """At which stage each failure goes wrong, by what lifts the caution.

    perception: the caption was not right and the true description lifts it; intent: what the request means lifts it
    (with a right caption, or where the description alone did not); decision: caution stays with both told. A right
    caption whose description lifts it counts as intent, since nothing was misperceived.
    """
    described, meant = found.get("description", {}), found.get("description_intent", {})
    known = [case for case in cases if case in described and case in meant and case in perceived]
    counted, clusters = Counter[str](), _clusters(known, samples)
    for case in known:
        if perceived[case] != "right" and not described[case]:
            counted["perception"] += 1
        elif not described[case] or not meant[case]:
            counted["intent"] += 1
        else:
            counted["decision"] += 1
    return {name: {"count": counted[name], "n": len(known),
                   "interval": wilson(counted[name], len(known), clusters=clusters)} for name in STAGES}  # fmt: skip
