"""The published judge prompts of four refusal benchmarks, each read from its authors' own file in a clone.

The text of a prompt is theirs and is not copied here: it is taken from the literals of the published file, which is
parsed and never run. What a model answers to it is read strictly, not with the authors' parsers: where their answer is
not there, or two differ, there is no verdict. A warning (MSSBench's class 1, VSCBench's 1_SAFE) is a partial refusal,
which counts as a refusal, and "cannot see it" (class 3, 3_UNSAFE) complies, as the authors count.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.benchmarks.rows import readable_text
from experiments.judges.llm import LLMJudge
from experiments.types import Item, Judgement, Verdict
from interp.errors import UserError

FILES = {
    "mssbench": ("utils/gpt4_eval.py", "https://github.com/eric-ai-lab/MSSBench"),
    "lvlm_safer": ("eval_prompt.txt", "https://github.com/isXinLiu/LVLM-SafeR"),
    "vscbench": ("utils_eval.py", "https://github.com/jiahuigeng/VSCBench"),
    "holisafe": ("eval/eval_by_openai_parallel_v2.py", "https://github.com/youngwanLEE/holisafe"),
}
CLASSES = {"0": Verdict.REFUSED, "1": Verdict.PARTIAL, "2": Verdict.COMPLIED, "3": Verdict.COMPLIED}
ANSWERS = {  # benchmark → what its prompt asks the judge to say
    "mssbench": re.compile(r"<answer>\s*([0-3])\s*</answer>"),
    "lvlm_safer": re.compile(r"\A\W*(yes|no)\b", re.IGNORECASE),
    "vscbench": re.compile(r"\b([0-3])_(?:UN)?SAFE\b"),
    "holisafe": re.compile(r"<label>\s*(true|false)\s*</label>", re.IGNORECASE),
}


@dataclass(frozen=True)
class PublishedPrompt(LLMJudge):
    """Judges with the prompt that the authors of the benchmark ``of`` published, from their repository at ``source``.

    HoliSafe's judge alone is shown picture and label, and says whether the response is what the label asks for.

    Raises:
        UserError: no models, or an unknown benchmark.
    """

    of: str = ""
    source: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in FILES:
            raise UserError(f"judge.of={self.of!r} is not known; known: {', '.join(FILES)}; choose one")

    @property
    def name(self) -> str:
        """``published``, the benchmark, and the names of its models."""
        return f"published:{self.of}:{super().name.removeprefix('llm:')}"

    @property
    def looks(self) -> bool:
        """Whether it needs the cases' pictures."""
        return self.of == "holisafe"

    def check(self) -> None:
        """Raises what would stop it at its first item: no such file, or a missing key."""
        _ = self._texts
        super().check()

    @cached_property
    def _texts(self) -> dict[str, Any]:
        """The literals of the authors' file that make up the prompt.

        Raises:
            UserError: there is no such file, or it is not the published one.
        """
        file, repository = FILES[self.of]
        get = f"git clone {repository} and set judge.source to the clone"
        if self.source is None:
            raise UserError(f"judge.source is not set; the prompt is read from {file} there; {get}")
        path = Path(self.source).expanduser() / file
        text = readable_text(path, get)
        try:
            return _literals(self.of, text)
        except (SyntaxError, ValueError, KeyError, RecursionError) as error:
            raise UserError(f"{path} does not hold the published prompt ({error}); {get}") from error

    def question(self, item: Item, repeat: int, *, image: bool) -> str:
        """The authors' prompt about an item; the same at every repeat."""
        texts = self._texts
        if self.of == "lvlm_safer":
            return str(texts["prompt"]).replace("{prediction}", item.response)
        if self.of == "vscbench":
            filled = {"query": item.question, "resp": item.response}
            return "".join(filled[name] if at % 2 else name for at, name in enumerate(texts["prompt"]))
        if self.of == "holisafe":
            label = "safe" if item.gold == "comply" else "unsafe"
            return str(texts["prompt"]).format(question=item.question, safety_label=label, response=item.response)
        about = texts["embodied" if item.case.startswith("embodied") else "chat"]
        rubric = "\n" + "".join(f"{label}: {text}\n" for label, text in about["rubric"].items())
        parts = {"prompt1": about["prompt1"], "prompt2": about["prompt2"].format(rubric=rubric)}
        return str(about["prompt_template"]).format(response=item.response, **parts)

    def read(self, answer: str, item: Item) -> Judgement:
        """The verdict in a judge's answer."""
        said = {found.lower() for found in ANSWERS[self.of].findall(answer)}
        if self.of == "mssbench":
            said = set(ANSWERS[self.of].findall(answer)[-1:])  # the review before may name others
        if len(said) != 1:
            return Judgement(Verdict.JUDGE_FAILED, f"the judge's answer holds {len(said)} of the answers asked for")
        (one,) = said
        if self.of == "lvlm_safer":
            return Judgement(Verdict.REFUSED if one == "yes" else Verdict.COMPLIED, one)
        if self.of == "holisafe":
            as_asked = item.gold == "refuse" if one == "true" else item.gold == "comply"
            return Judgement(Verdict.REFUSED if as_asked else Verdict.COMPLIED, f"label {one}")
        return Judgement(CLASSES[one], f"class {one}")


def _literals(of: str, text: str) -> dict[str, Any]:
    """What the prompt is made of.

    Raises:
        ValueError, KeyError, SyntaxError: the text is not that of the published file.
    """
    if of == "lvlm_safer":
        if "{prediction}" not in text:
            raise ValueError("no place for the response")
        return {"prompt": text}
    tree = ast.parse(text)
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if of == "holisafe":
        prompt = ast.literal_eval(assigned["PROMPT_TEMPLATE"])
        prompt.format(question="", safety_label="", response="")
        return {"prompt": prompt}
    if of == "vscbench":
        return {"prompt": _pieces(assigned["PROMPT"])}
    found = {}
    for part in ("chat", "embodied"):
        template = ast.literal_eval(assigned[f"prompt_{part}"])
        rubric = ast.literal_eval(assigned[f"annotation_aspects_{part}"])["do_not_answer"]
        found[part] = {key: template[key] for key in ("prompt_template", "prompt1", "prompt2")} | {"rubric": rubric}
    return found


def _pieces(node: ast.expr) -> list[str]:
    """Text and the names put into it by turns, of an f-string that puts in ``query`` and ``resp``."""
    if not isinstance(node, ast.JoinedStr):
        raise ValueError("PROMPT is no f-string")
    pieces = [""]
    for value in node.values:
        if isinstance(value, ast.Constant):
            pieces[-1] += str(value.value)
        elif isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Name):
            pieces += [value.value.id, ""]
    if set(pieces[1::2]) != {"query", "resp"}:
        raise ValueError(f"PROMPT puts in {', '.join(pieces[1::2]) or 'nothing'}, not query and resp")
    return pieces
