"""Names that the command line had once, in today's words."""

from collections.abc import Sequence

from interp.errors import UserError

FORMER = {
    "+exp=ablation_llava": "+exp=direction_ablation",
    "+exp=bench_attention": "task=bench_attention",
    "+exp=bench_eval": "task=bench_eval",
    "+exp=bench_kernels": "task=bench_kernels",
    "+exp=bench_report": "task=bench_report",
    "+exp=bench_vcd": "task=bench_vcd",
    "+exp=frontier_llava": "+exp=mitigation_selection",
    "+exp=judge_xstest": "task=judge_validation",
    "+exp=mechanism_llava": "+exp=mechanism",
    "+exp=mossbench_leaderboard": "task=mossbench_leaderboard",
    "+exp=mossbench_safety": "task=mossbench_safety",
    "+exp=stages_llava": "+exp=reasoning_stages",
    "+exp=train_organism": "task=train_organism",
    "+exp=train_refusal_classifier": "task=judge_training",
    "+exp=vcd_frontier": "task=vcd_grid",
    "task=ablation": "task=direction_ablation",
    "task=frontier": "task=vcd_grid",
    "task=judge_card": "task=judge_validation",
    "task=labels": "task=human_labels",
    "task=mitigations": "task=mitigation_selection",
    "task=mmsafeaware_table1": "task=mmsafeaware_table task.table=1",
    "task=mmsafeaware_table2": "task=mmsafeaware_table task.table=2",
    "task=mmsafeaware_table3": "task=mmsafeaware_table task.table=3",
    "task=models": "task=model_table",
    "task=stages": "task=reasoning_stages",
    "task=train_refusal_classifier": "task=judge_training",
}
# Options of tasks that are now the run's own, or have a name of their own.
FORMER_KEYS = {
    "task.attribution": "attribution",
    "task.case": "case",
    "task.labels": "labels",
    "task.limit": "task.failures",
    "task.run": "run",
    "task.runs": "runs",
}


def in_todays_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with every former name replaced, and one sentence for each that was.

    Raises:
        UserError: a former name in a sweep (``+exp=a,b``) where today's names are not all of one group.
    """
    said: list[str] = []
    notes: list[str] = []
    for argument in arguments:
        today = _today(argument)
        if today != argument:
            notes.append(f"{argument} is now called {today}.")
        said += today.split(" ") if today != argument else [argument]
    return said, notes


def _today(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if key in FORMER_KEYS and equals:
        return f"{FORMER_KEYS[key]}={value}"
    names = [f"{key}={name}" for name in value.split(",")]
    if not any(name in FORMER for name in names):
        return argument
    todays = [FORMER.get(name, name).partition("=") for name in names]
    groups = {group for group, _, _ in todays}
    if len(todays) > 1 and (len(groups) > 1 or any(" " in name for _, _, name in todays)):
        listed = ", ".join(f"{name} ({FORMER[name]})" for name in names if name in FORMER)
        raise UserError(f"{argument}: names that have changed and cannot be swept together: {listed}; sweep them apart")
    return f"{todays[0][0]}=" + ",".join(name for _, _, name in todays)
