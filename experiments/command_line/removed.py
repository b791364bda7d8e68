"""Say what replaces a feature that was removed, if somebody types it."""

from collections.abc import Sequence

_WORDS = "Compare the picture with words by +exp=verbalise_llava."
_LANGUAGES = "Run the study once for each language: benchmark=table, or benchmark=msts benchmark.language=french."
_SUITE = "Use +exp=papers for both papers, or one command with benchmark=<name> for each benchmark."
_HUB = "Download the data set (hf download) and give one of its files as path."
_FOLDER = "Use benchmark={0} benchmark.root=<folder>."
REMOVED = {  # what is typed → what to do instead
    "+exp=words_and_picture": _WORDS,
    "task=words_and_picture": _WORDS,
    "task.transplant": "Exchange states with +exp=mechanism or interp.tools.patching.",
    "task=reasoning_stages": "Use +exp=reasoning_stages, which compares arms of existing methods.",
    "task.separability": "Use +exp=drift to test whether removing the picture's drift helps.",
    "task=languages": _LANGUAGES,
    "+exp=languages": _LANGUAGES,
    "benchmark=translated": "Put the translated questions into a table: benchmark=table benchmark.path=<file>.",
    "task=oversensitivity_suite": _SUITE,
    "+exp=oversensitivity_suite": _SUITE,
    **{name: _FOLDER.format(name) for name in ("mssbench", "lvlm_safer", "holisafe")},
    **dict.fromkeys(
        ("benchmark=vscbench", "vscbench"), "Put its rows into a table: benchmark=table benchmark.path=<file>."
    ),
    **dict.fromkeys(
        ("benchmark.configuration", "benchmark.revision", "task.data.configuration", "task.data.revision"), _HUB
    ),
    "benchmark=mossbench_contrast": "Use benchmark=mossbench benchmark.sets=contrast.",
    "benchmark.source": "Clone turningpoint-ai/MOSSBench and set benchmark.root to the clone.",
    "task.format=inspect": "Read predictions.jsonl and results.csv of the run; logs of Inspect are still read.",
    "task.format=mmsafeaware": "Use task=export task.format=vlmevalkit task.to=cases.tsv.",
    "task=mossbench_safety": "Join the runs instead: task=report runs=[a,b].",
    "method=distilled": "Use method=verbalise, which judges in words without training.",
    "+exp=distilled": "Use +exp=verbalise_llava, which judges in words without training.",
    "method=part_scaling": "Find parts with +exp=localise, and scale them in a method file (method=file).",
    "+exp=part_scaling": "Find parts with +exp=localise, and scale them in a method file (method=file).",
    "task=model_table": "Ask about one model by task=prove model.path=<folder>; conf/models.yaml lists the models.",
    "task=failure_modes": "Read failures in the report's case browser, or label them with task=human_labels.",
    "recipe@task.recipe": "Set task.steps, task.batch_size and task.aligned of the training task.",
    "task.learning_rates": "Name adapters with their settings: '+task.adapters.gentle={learning_rate: 3e-4, seed: 1}'.",
    "task.seeds": "Name adapters with their settings: '+task.adapters.again={seed: 1}'.",
    "task.kinds": "Leave it out: every kind of perception question is asked.",
    "task=judge_training": "Run python -m experiments.studies.refusal_judges.training <XSTest> <MSTS> weights.json.",
    "judge.threshold": "The weights file has a threshold for each class; give another file with judge.weights.",
    "judge.repeats": "Name several models: +model@judge.models.second=<model>.",
    "judge.cross_fitted": "A run says how many of its prompts taught the judge.",
    "task=direction_ablation": "Use +exp=direction_ablation, which compares arms of existing methods.",
    "task.chosen_in": "Leave it out: on the same development cases the same settings are chosen again.",
    "task=bench_eval": "Read cost in environment.json, which has the seconds of each arm.",
    **dict.fromkeys(("task.push", "task.repo", "task.private"), "Send the folder by hf upload owner/name <folder>."),
    "task.hub": "Leave it out: the organism was trained on the weights of the package index.",
    "attribution": "Use integrated_gradients, occlude_image and occlude_words of interp in Python.",
    "task.attention": "Use record_attention in Python, with and without the adapter.",
    "task.memory": "Use task=plan, which estimates peaks of memory.",
    "task.read": "Read filled sheets by task=rejudge run=<dir> labels=[anna.csv,ben.csv].",
    "task.random_sets": "Use interp.part_set_effects in Python with sets of parts.",
    "task.segments": "Use record_attention in Python, which has the mass of every segment.",
    "task.place": "Parts are replaced at the verdict; use interp.part_attribution in Python for other places.",
    "method=opera": "Use method=vcd or method=pai.",
    "method=only": "Use method=vcd or method=pai.",
    "method.rewrite": "Use method.resolve=rule or method.resolve=before.",
    "method.reword": "Use method=verbalise, which rewords the question.",
    "task.settings.merge": "Merge afterwards with task=export, which writes base and adapter as one checkpoint.",
}


def removed_feature(arguments: Sequence[str]) -> str | None:
    """Return the sentence about the first removed feature among the arguments, or None.

    Args:
        arguments: words of the command line, such as ``task=languages`` or ``+method@arms.a=distilled``.
    """
    for argument in arguments:
        key, _, value = argument.lstrip("+~").partition("=")
        group = key.partition("@")[0] if not key.startswith("recipe") else key
        for typed in (f"+{group}={value}" if group == "exp" else f"{group}={value}", key):
            if typed in REMOVED:
                return f"{typed} was removed. {REMOVED[typed]}"
    return None
