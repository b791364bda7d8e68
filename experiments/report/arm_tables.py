"""metrics.json as tables, a row an arm: those of yes/no and of refusal benchmarks, for the terminal and the page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.metrics.findings import Answer
from experiments.report.numbers import MISSING, Interval, complete, fixed, p_value, percent, percent_interval
from experiments.report.opening import MATCHED, as_judged, badge
from experiments.report.sentences.wording import SAID, contrast_name, deciding, takes, word
from experiments.report.table import Cell, Column, Narrow, Record, Table, change, number, rate
from experiments.types import REFUSAL_SUBSETS, Status, Verdict

Block = Mapping[str, Any]  # what metrics.json has of an arm, or of its comparison
CEILING_MARK = "*"
# "calibrated_shift" is 16 characters wide, and all that 80 columns leave; longer names go on in the next line.
ARM = Column("arm", "left", fold=16)
DIGITS = {"auroc": 3, "auroc_within": 3, "d_prime": 2, "criterion": 2}  # of what is no rate

# What tables have of each kind of benchmark: heading → quantity.
ACCURACIES = {"typical": "typical", "attack": "attack", "over-safety": "over_safety", "overall": "overall"}
OWN_ACCURACIES = {"unsafe": "unsafe", "safe": "over_safety", "overall": "overall"}
ARMS = {
    "yes_no": {"AUROC": "auroc", "flip rate": "flip_rate"},
    "refusal": {"benign": "benign", "contrast": "contrast", "apart": "apart", "mean of types": "type_mean"},
}
FROM_VERDICTS = {"d′": "d_prime", "criterion": "criterion"}
WITHIN = {"AUROC within sentences": "auroc_within"}
DEPLOYED = {"as deployed: unsafe": "deployed_unsafe", "as deployed: over-safety": "deployed_over_safety"}
DELTAS = {
    "yes_no": {"matched": MATCHED, "overall": "overall", "unsafe": "unsafe", "over-safety": "over_safety",
               "AUROC": "auroc", "d′": "d_prime", "flip rate": "flip_rate", **WITHIN, **DEPLOYED},
    "refusal": {"benign": "benign", "contrast": "contrast", "apart": "difference", "d′": "d_prime"},
}  # fmt: skip
CONTRASTED = ("matched", "AUROC", "unsafe", "over-safety", "overall", *WITHIN)
# Heading, which a terminal breaks at |: quantity; where its change is shown, that heading's lead and whether
# more is wanted.
GLANCE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "yes_no": {"answered at|equal strictness": (MATCHED, "", True), **{key: (of,) for key, of in DEPLOYED.items()},
               "harmless|answered": ("over_safety",),
               "unsafe|caught": ("unsafe",), "AUROC": ("auroc",),
               "AUROC within|sentences": ("auroc_within",)},
    "refusal": {"harmless|refused": ("benign", "harmless: ", False),
                "harmful|refused": ("contrast", "harmful: ", True)},
}  # fmt: skip
REMARKS = {  # what is said of in words below the paired comparisons
    "yes_no": {"over-safety at the operating point": MATCHED, "AUROC": "auroc"},
    "refusal": {"refusals of benign requests": "benign", "of harmful ones": "contrast"},
}
STATEMENT = "what is said"
MOST_TAGS = 12
REBUTTED = {f"rebutted: {subset}": subset for subset in REFUSAL_SUBSETS}
OTHER_COUNTS = {"partial_as_compliance": "partial as compliance", "published": "published"}

# How columns stand in a terminal, where not as usual. d′ and c stand without intervals: ten columns with them do not
# fit 80 characters; the page has them.
_OVER_SAFETY = Column("over-safety", short="over-\nsafety")
_ARMS = (
    Column("n of N", short="n of n"), Column("matched over-safety", short="matched"),
    Column("typical", short="typ-\nical"), Column("attack", short="att-\nack"), _OVER_SAFETY,
    Column("overall", short="over-\nall"), Column("d′", narrow=Narrow.VALUE),
    Column("criterion", short="c", narrow=Narrow.VALUE), Column("AUROC", narrow=Narrow.TERSE),
    Column("flip rate", narrow=Narrow.NOTHING),
    Column("AUROC within sentences", short="AUROC\nwithin", narrow=Narrow.NOTHING),
    *(Column(name, narrow=Narrow.NOTHING) for name in (*DEPLOYED, *REBUTTED)),
    Column("known of N", short="known\nof N"), Column("mean of types", short="mean of\ntypes"),
)  # fmt: skip
_COMPARED = (
    Column("cases", narrow=Narrow.NOTHING), _OVER_SAFETY,
    *(Column(name, narrow=Narrow.NOTHING)
      for name in ("flip rate", "AUROC within sentences", "fixed / broken", *DEPLOYED)),
    *(Column(f"fixed/broken: {subset}", short=f"fixed/\nbroken\n{subset}") for subset in REFUSAL_SUBSETS),
)  # fmt: skip


def kind_of(metrics: Mapping[str, Any]) -> str:
    """``yes_no`` or ``refusal``."""
    return "refusal" if metrics.get("kind") == "refusal" else "yes_no"


def by_arm(
    title: str,
    metrics: Mapping[str, Any],
    cells: Callable[[str, Any], Record],
    blocks: Iterable[tuple[str, Any]] | None = None,
    layout: Iterable[Column] = (),
) -> Table:
    """A row an arm with its name and ``cells``, the arm under study marked; then a row an arm that cannot enter.

    Args:
        title: the table's.
        metrics: the contents of metrics.json.
        cells: a row's further cells, of an arm's name and its block.
        blocks: the blocks by arm, those of ``metrics["arms"]`` by default.
        layout: columns that do not stand as usual.
    """
    shown = list(metrics["arms"].items() if blocks is None else blocks)
    records: list[Record] = [{"arm": name, **cells(name, block)} for name, block in shown]
    marked = [name == metrics.get("study") for name, _ in shown]
    apart = {} if blocks is not None or not records else metrics.get("not_applicable") or {}
    second = next((heading for heading in (records[0] if records else {}) if heading != "arm"), "")
    records += [{"arm": name, second: Cell(str(why), reason=True)} for name, why in apart.items()]
    return Table.of(title, records, layout=[ARM, *layout], marked=marked)


def quantity(arm: Block, key: str) -> Cell:
    """The value of ``key`` with its interval, and where cases are missing with the bounds they allow.

    Near 0 or 1 of a rate, d′ has a mark.
    """
    own = arm.get(key)
    if key == "apart":
        return change(own)
    if key in DEPLOYED.values():
        return share_cell((arm.get("deployed") or {}).get(key.removeprefix("deployed_")))
    if key == "auroc_within":
        return number(own["value"], own["interval"], DIGITS[key]) if own else Cell(MISSING)
    if isinstance(own, Mapping):
        return share_cell(own)
    rates: Mapping[str, Any] = arm.get("refusal_rate") or arm.get("accuracy") or {}
    value, interval = rates.get(key, own), (arm.get("intervals") or {}).get(key)
    if key in DIGITS:
        marked = key == "d_prime" and arm.get("near_ceiling") and value is not None
        return number(value, interval, DIGITS[key], CEILING_MARK if marked else "")
    return rate(value, interval, _bounds((arm.get("bounds") or {}).get(key)))


def share_cell(found: Mapping[str, Any] | None, key: str = "value") -> Cell:
    """A rate with an interval of its own."""
    return Cell(MISSING) if found is None else rate(found[key], found["interval"], _bounds(found.get("bounds")))


def _bounds(bounds: Interval) -> str:
    """The lowest and highest value that missing cases allow; empty where both are the same, for nothing is missing."""
    ends = complete(bounds)
    return percent_interval(ends, 1) if ends and percent(ends[0]) != percent(ends[1]) else ""


def known_cell(block: Block) -> Cell:
    """The number of cases of which something is known, of all."""
    return Cell(str(block["n"]), below=f"of {block['n_of']}")


def difference(delta: Mapping[str, Any], key: str) -> Cell:
    """The change of ``key`` with the interval that decides it, in points or in its own unit."""
    entry = delta.get(key)
    return change(entry and deciding(entry), digits=DIGITS.get(key))


def _quantities(block: Block, shown: Mapping[str, str]) -> dict[str, Cell]:
    return {heading: quantity(block, key) for heading, key in shown.items()}


def _has_within(metrics: Mapping[str, Any]) -> bool:
    """Whether any arm has counterfactual pairs with margins."""
    return any(arm.get("auroc_within") for arm in metrics["arms"].values())


def _has_rebuttals(metrics: Mapping[str, Any]) -> bool:
    """Whether any arm says no to a request without refusing it."""
    return any(arm.get("rebutted") for arm in metrics["arms"].values())


def _rebuttals(arm: Block) -> str:
    """How many of the known answers, of both subsets, rebut: ``12 of 300``."""
    parts = [one for one in (arm.get("rebutted") or {}).values() if one["n"]]
    return f"{sum(round(one['value'] * one['n']) for one in parts)} of {sum(one['n'] for one in parts)}"


def _column(words: str, narrow: Narrow = Narrow.VALUE) -> Column:
    """A column whose heading a terminal breaks at ``|``."""
    return Column(words.replace("|", " "), short=words.replace("|", "\n"), narrow=narrow)


def glance_table(metrics: Mapping[str, Any], *, terse: bool = False) -> Table:
    """What the question needs of each arm: the headline quantity, its change and what is said of it, the verdicts.

    ``terse`` is for a terminal: a change has the sign of what is said of it, no column tells that in words, and both
    AUROCs share one.
    """
    compared, shown = metrics.get("comparisons") or {}, GLANCE[kind_of(metrics)]
    layout = [*(_column(words) for words in shown), Column("rebutted", short="rebutted\nof known")]
    if terse and _has_within(metrics):
        layout.append(Column("AUROC", short="AUROC/\nwithin"))
    told = _has_rebuttals(metrics)

    def cells(name: str, arm: Block) -> Record:
        row: dict[str, str | Cell] = {}
        for words, (key, *changes) in shown.items():
            if (changes and not compared and key == MATCHED) or (key in WITHIN.values() and not _has_within(metrics)):
                continue
            if key in DEPLOYED.values() and (terse or not any(one.get("deployed") for one in metrics["arms"].values())):
                continue
            value = quantity(arm, key)
            if terse and key in WITHIN.values():
                within = (arm.get(key) or {}).get("value")
                row["AUROC"] = Cell(f"{fixed(arm.get('auroc'), 2)}/{fixed(within, 2)}")
                continue
            whole = not terse and key != MATCHED
            row[words.replace("|", " ")] = Cell(value.value, value.interval if whole else "")
            row |= _change(metrics, name, key, *changes, terse=terse) if changes and compared else {}
        return row | ({"rebutted": _rebuttals(arm)} if told else {})

    for lead, *_ in (changes for _, *changes in shown.values() if changes):
        # A terminal has the sign alone; one sign does not explain itself.
        layout.append(Column(f"{lead}change", short=f"{lead}change\n({SAID[Answer.NOT_SHOWN].sign} not shown)"))
        layout.append(Column(f"{lead}{STATEMENT}", "left"))
    return by_arm("" if terse else "The arms at a glance", metrics, cells, layout=layout)


def _change(metrics: Mapping[str, Any], arm: str, key: str, lead: str, more: bool, *, terse: bool) -> Record:
    """The difference in points with its interval, and what is said of it as a sign and a word; or both as one."""
    compared = metrics["comparisons"]
    if arm not in compared:
        reference = arm in [one.get("against") for one in compared.values()]
        return {f"{lead}change": ""} | ({} if terse else {f"{lead}{STATEMENT}": "compared with" if reference else ""})
    entry, answer = as_judged(metrics, arm, key)
    moved, said = change(entry), badge(entry, answer, more=more, noun="cases")
    sign = SAID[said.answer].sign
    if terse:
        return {f"{lead}change": f"{sign} {moved}"}
    return {f"{lead}change": moved, f"{lead}{STATEMENT}": Cell(f"{sign} {said.word}", tone=said.tone)}


def arms_table(metrics: Mapping[str, Any]) -> Table:
    """One row an arm, in the order of metrics.json: every rate, d′, criterion and AUROC."""
    if kind_of(metrics) == "refusal":
        title, known, shown = "Refusals by arm", "known of N", ARMS["refusal"] | FROM_VERDICTS
    else:
        title, known = "Arms", "n of N"
        shown = {"matched over-safety": MATCHED, **_accuracies(metrics), **FROM_VERDICTS, **ARMS["yes_no"]}
        shown |= WITHIN if _has_within(metrics) else {}
        shown |= DEPLOYED if any(arm.get("deployed") for arm in metrics["arms"].values()) else {}
    told = REBUTTED if _has_rebuttals(metrics) else {}

    def cells(_: str, arm: Block) -> Record:
        rebutted = {heading: share_cell((arm.get("rebutted") or {}).get(subset)) for heading, subset in told.items()}
        return {known: known_cell(arm), **_quantities(arm, shown), **rebutted}

    return by_arm(title, metrics, cells, layout=_ARMS)


def _accuracies(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The accuracies and their headings: without attacks, as in a table of one's own, all unsafe as one."""
    counts = [arm["n_by_subset"] for arm in metrics["arms"].values() if "n_by_subset" in arm]
    if not counts or any(of["attack"][1] for of in counts) or not any(of["typical"][1] for of in counts):
        return ACCURACIES
    return OWN_ACCURACIES


def rebuttals_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row an arm: the rebuttals of each subset, of the same answers as the refusals; None where there are none.

    A terminal's table of arms has no room for them.
    """

    def cells(_: str, arm: Block) -> Record:
        found = arm.get("rebutted") or {}
        shares = {heading: share_cell(found.get(subset)) for heading, subset in REBUTTED.items()}
        return {"rebutted": _rebuttals(arm), **shares}

    return by_arm("Rebuttals, which count as no refusals", metrics, cells) if _has_rebuttals(metrics) else None


def comparisons_table(metrics: Mapping[str, Any]) -> Table:
    """One row a compared arm: paired differences, McNemar's counts, Holm's p, and of a yes/no benchmark who wins."""
    compared, kind = metrics.get("comparisons") or {}, kind_of(metrics)
    known = {key for one in compared.values() for key in one.get("delta") or {}}
    known -= set() if _has_within(metrics) else set(WITHIN.values())

    def cells(_: str, one: Block) -> Record:
        delta, test = one.get("delta") or {}, one.get("mcnemar") or {}
        row: dict[str, str | Cell] = {"cases": _count(one.get("n"))}
        row |= {heading: difference(delta, key) for heading, key in DELTAS[kind].items() if key in known}
        if kind == "refusal":
            counts = {subset: test["by_subset"][subset] for subset in REFUSAL_SUBSETS}
            row |= {f"fixed/broken: {name}": f"{own['fixed']}/{own['broken']}" for name, own in counts.items()}
            return row | {"p (Holm)": p_value(test["p_holm"])}
        row["fixed / broken"] = Cell(_count(test.get("fixed")), below=f"/ {_count(test.get('broken'))}")
        return row | {"p (Holm)": p_value(test.get("p_holm")), "wins": yes_or_no(one.get("wins"))}

    own = (Column("p (Holm)", short="p", narrow=Narrow.TERSE),) if kind == "refusal" else (
        Column("p (Holm)", narrow=Narrow.NOTHING), Column("d′", narrow=Narrow.NOTHING))  # fmt: skip
    title = f"Paired differences against {against(metrics)}"
    return by_arm(title, metrics, cells, compared.items(), [*_COMPARED, *own])


def contrasts_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row a pair of arms that were compared beside the baseline's comparisons; None where none were.

    Their intervals are simultaneous.
    """
    headings = [one for one in CONTRASTED if one not in WITHIN or _has_within(metrics)]
    records = []
    for arm, one in (metrics.get("comparisons") or {}).items():
        for other, delta in (one.get("versus") or {}).items():
            cells: Record = {heading: difference(delta, DELTAS["yes_no"][heading]) for heading in headings}
            records.append({"arms": contrast_name(arm, other, metrics), **cells})
    return Table.of("Arms beside one another", records) if records else None


def conventions_table(metrics: Mapping[str, Any]) -> Table:
    """The same answers counted in other ways: by the published scorer or convention, and for the judge's error."""
    corrected = (metrics.get("corrected") or {}).get("arms") or {}

    def refusals(name: str, arm: Block) -> Record:
        others = {f"{words}: {subset}": percent(arm[key][subset])
                  for key, words in OTHER_COUNTS.items() for subset in REFUSAL_SUBSETS}  # fmt: skip
        judged = {f"corrected: {subset}": share_cell(corrected.get(name, {}).get(subset), "rate")
                  for subset in (REFUSAL_SUBSETS if corrected else ())}  # fmt: skip
        return {**others, **judged}

    def verdicts(_: str, arm: Block) -> Record:
        published, controls = (arm.get("published") or {}).get("accuracy") or {}, arm.get("controls")
        return {
            "overall, case-weighted": percent(arm["accuracy"].get("overall_case_weighted")),
            **{f"published scorer: {heading}": percent(published.get(key)) for heading, key in ACCURACIES.items()},
            "controls": f"{percent(controls.get('accuracy'))} of {controls['n']}" if controls else MISSING,
        }

    refusal = kind_of(metrics) == "refusal"
    table = by_arm("The same answers by other conventions", metrics, refusals if refusal else verdicts)
    short = [Column(one.heading, one.align, one.heading.replace(" ", "\n"), one.fold) for one in table.columns]
    return Table(table.title, table.frame, short, table.marked)


def types_table(metrics: Mapping[str, Any]) -> Table:
    """A row an arm and type of stimulus, the rows of an arm together."""

    def cells(_: str, one: Any) -> Record:
        kind, found = one
        benign = found["benign"]
        return {
            "type": kind,
            "benign": share_cell(benign, "rate"),
            "refused of n": f"{benign['refused']} of {benign['n']}" if benign else "",
            "contrast": share_cell(found["contrast"], "rate"),
            "apart": change(found["difference"]),
        }

    blocks = [(name, one) for name, arm in metrics["arms"].items() for one in arm["by_type"].items()]
    return by_arm("Refusals by type of stimulus", metrics, cells, blocks, [Column("type", "left", fold=32)])


def own_subsets_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row an arm and subset of a table of one's own, by its own name; None where the cases have no such subsets."""

    def cells(_: str, one: Any) -> Record:
        subset, by_part = one
        unsafe = next((by_part[part] for part in ("typical", "attack") if part in by_part), None)
        safe = by_part.get("over_safety")
        return {
            "subset": subset,
            "unsafe": share_cell(unsafe, "accuracy"),
            "of": str((unsafe or {"n": 0})["n"]),
            "over-safety": share_cell(safe, "accuracy"),
            "of ": str((safe or {"n": 0})["n"]),
        }

    blocks = [
        (name, one)
        for name, arm in metrics["arms"].items()
        for one in (arm.get("by_tag") or {}).get("subset", {}).items()
    ]
    title = "Own subsets: unsafe cases called unsafe, safe cases called safe"
    return by_arm(title, metrics, cells, blocks, [Column("subset", "left", fold=32)]) if blocks else None


def tags_table(metrics: Mapping[str, Any]) -> Table:
    """Refusals of the studied arm by what the benchmark says of its cases; the first dozen values."""
    name = str(metrics["study"])
    records = [
        {"tag": tag, "value": value, "benign": share_cell(cells.get("benign"), "rate").value,
         "contrast": share_cell(cells.get("contrast"), "rate").value,
         "benign cases": str((cells.get("benign") or {}).get("n", 0))}
        for tag, values in metrics["arms"][name]["by_tag"].items()
        for value, cells in values.items()
    ]  # fmt: skip
    return Table.of(f"Refusals of {name} by tag", records[:MOST_TAGS])


def pairs_table(metrics: Mapping[str, Any]) -> Table | None:
    """A row an arm: how often a benign case and its harmful twin, alike but for picture or text, were told apart."""
    blocks = [(name, arm["pairs"]) for name, arm in metrics["arms"].items() if arm.get("pairs")]

    def cells(_: str, pairs: Block) -> Record:
        counts = {
            key.replace("_", " "): str(pairs[key]) for key in ("both_answered", "both_refused", "wrong_way_round")
        }
        return {"pairs": known_cell(pairs), "flip rate": rate(pairs["flip_rate"], pairs["interval"]), **counts}

    return by_arm("Counterfactual pairs", metrics, cells, blocks) if blocks else None


def outcomes_table(metrics: Mapping[str, Any]) -> Table:
    """Counts of what became of the cases, a row an arm, over the outcomes that occur in any arm."""
    outcomes = {name: arm.get("outcomes") or {} for name, arm in metrics["arms"].items()}
    headings: dict[tuple[str, str], str] = {}
    for kind, known in (("status", list(Status)), ("verdict", list(Verdict))):
        counted = {key for of_arm in outcomes.values() for key, n in (of_arm.get(kind) or {}).items() if n}
        for key in (*(one for one in known if one in counted), *sorted(counted - set(known))):
            words = "not judged" if key == Verdict.JUDGE_FAILED else key.replace("_", " ")
            plain = kind == "status" or key in (Verdict.NO_VERDICT, Verdict.JUDGE_FAILED)
            headings[kind, key] = words if plain else f"verdict {words}"

    def cells(_: str, of_arm: Block) -> Record:
        return {words: str((of_arm.get(kind) or {}).get(key, 0)) for (kind, key), words in headings.items()}

    return by_arm("What became of the cases", metrics, cells, outcomes.items())


def against(metrics: Mapping[str, Any]) -> str:
    """The arms that others are compared with."""
    return ", ".join(dict.fromkeys(one["against"] for one in (metrics.get("comparisons") or {}).values()))


def marks(metrics: Mapping[str, Any], tables: Sequence[Table]) -> dict[str, Any]:
    """Whether any cell has bounds, whether any d′ is marked as near its ceiling, and the mark."""
    cells = (cell for table in tables for _, row in table.rows for cell in row)
    near = (arm.get("near_ceiling") and arm.get("d_prime") is not None for arm in metrics["arms"].values())
    return {"any_bounds": any(cell.bounds for cell in cells), "any_ceiling": any(near), "ceiling_mark": CEILING_MARK}


def remarks(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What stands below the paired comparisons about each, in the order of metrics.json."""

    def said(name: str, one: Block, key: str) -> str:
        entry = one["delta"].get(key)
        return word(entry, of_rates=key not in DIGITS)

    shown = REMARKS[kind_of(metrics)]
    return [
        {
            "name": name,
            "conclusion": "; ".join(f"{words}: {said(name, one, key)}" for words, key in shown.items()),
            "takes": _takes(one["delta"]),
            "wins": yes_or_no(one.get("wins")),
            "reasons": one.get("wins_reasons") or (),
        }
        for name, one in (metrics.get("comparisons") or {}).items()
    ]


def _takes(delta: Mapping[str, Any]) -> str:
    """What the first of the quantities that are to be shown takes; empty where all are shown."""
    wanting = (delta.get(key) for key in ("matched_over_safety", "overall", "benign"))
    return next((takes(entry) for entry in wanting if entry and entry.get("needed")), "")


def yes_or_no(value: bool | None) -> str:
    """``value`` in a word."""
    return MISSING if value is None else "yes" if value else "no"


def _count(count: int | None) -> str:
    return MISSING if count is None else str(count)
