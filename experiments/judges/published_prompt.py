"""The published judge prompts of two refusal benchmarks, each read from its authors' own file in a clone.

The text of a prompt is not copied here. It is read from the literals of the published file, which is parsed and never
run. A model's answer is read strictly, not with the authors' parsers. If the expected answer is absent, or two differ,
there is no verdict. A warning (MSSBench's class 1) is a partial refusal, which counts as a refusal, and "cannot see it"
(class 3) complies, as the authors count.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments.benchmarks.rows import readable_text
from experiments.judges.llm import LLMJudge
from experiments.types import Item, Judgement, Verdict
from interp.errors import UserError

FILES = {
    "mssbench": ("utils/gpt4_eval.py", "https://github.com/eric-ai-lab/MSSBench"),
    "lvlm_safer": ("eval_prompt.txt", "https://github.com/isXinLiu/LVLM-SafeR"),
}
ANSWERS = {  # benchmark → what its prompt asks the judge to say
    "mssbench": re.compile(r"<answer>\s*([0-3])\s*</answer>"),
    "lvlm_safer": re.compile(r"\A\W*(yes|no)\b", re.IGNORECASE),
}
VERDICTS = {"0": Verdict.REFUSED, "1": Verdict.PARTIAL, "2": Verdict.COMPLIED, "3": Verdict.COMPLIED,
            "yes": Verdict.REFUSED, "no": Verdict.COMPLIED}  # fmt: skip
_RESPONSE = "\0"  # marks where the response goes
Around = tuple[str, str]  # a prompt before and after the response


@dataclass(frozen=True)
class PublishedPrompt(LLMJudge):
    """Judge with the prompt that the authors of ``benchmark`` published, from their repository at ``source``.

    Raises:
        UserError: no models, or an unknown benchmark.
    """

    look: bool = False
    benchmark: str = ""
    source: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.benchmark not in FILES:
            raise UserError(f"judge.benchmark={self.benchmark!r} is not known; known: {', '.join(FILES)}; choose one")

    @property
    def name(self) -> str:
        """``published``, the benchmark, and the names of its models."""
        return f"published:{self.benchmark}:{super().name.removeprefix('llm:')}"

    def check(self) -> None:
        """Raise what would stop it at its first item: no such file, or a missing key."""
        _ = self._templates
        super().check()

    @cached_property
    def _templates(self) -> dict[str, Around]:
        """The authors' prompt for each part of the benchmark ("chat" if it has none).

        Raises:
            UserError: there is no such file, or it is not the published one.
        """
        file, repository = FILES[self.benchmark]
        get = f"git clone {repository} and set judge.source to the clone"
        if self.source is None:
            raise UserError(f"judge.source is not set; the prompt is read from {file} there; {get}")
        path = Path(self.source).expanduser() / file
        text = readable_text(path, get)
        try:
            return _templates(self.benchmark, text)
        except (SyntaxError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise UserError(f"{path} does not have the published prompt ({error}); {get}") from error

    def question(self, item: Item, *, image: bool) -> str:
        """Return the authors' prompt about an item."""
        part = "embodied" if self.benchmark == "mssbench" and item.case.startswith("embodied") else "chat"
        return item.response.join(self._templates[part])

    def read(self, answer: str) -> Judgement:
        """Return the verdict in a judge's answer: the last class, after a review that may name others, or yes or no."""
        if not (answers := ANSWERS[self.benchmark].findall(answer)):
            return Judgement(Verdict.JUDGE_FAILED, "the judge's answer holds none of the answers asked for")
        return Judgement(VERDICTS[answers[-1].lower()], f"the judge's answer: {answers[-1]}")


def _templates(benchmark: str, text: str) -> dict[str, Around]:
    """Return ``PublishedPrompt._templates``, read from the text of the authors' file.

    Raises:
        ValueError, KeyError, SyntaxError, TypeError, IndexError: the text is not the published file.
    """
    if benchmark == "lvlm_safer":
        return {"chat": _around(text.replace("{prediction}", _RESPONSE))}
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assign))
    assigned = {ast.unparse(node.targets[0]): node.value for node in nodes}
    templates = {}
    for part in ("chat", "embodied"):
        prompt = ast.literal_eval(assigned[f"prompt_{part}"])
        rubric = ast.literal_eval(assigned[f"annotation_aspects_{part}"])["do_not_answer"]
        options = "\n" + "".join(f"{label}: {meaning}\n" for label, meaning in rubric.items())
        second = prompt["prompt2"].format(rubric=options)
        filled = prompt["prompt_template"].format(prompt1=prompt["prompt1"], prompt2=second, response=_RESPONSE)
        templates[part] = _around(filled)
    return templates


def _around(prompt: str) -> Around:
    before, mark, after = prompt.partition(_RESPONSE)
    if not mark or _RESPONSE in after:
        raise ValueError("the prompt has no place for one response")
    return before, after
