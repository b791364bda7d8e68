"""Arms that learn before they answer: once a run, on the benchmark's development split, in the first process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.images import BadImage, open_image
from experiments.benchmarks.sample import Benchmark, Sample
from experiments.launch import Launch
from interp.errors import UserError
from mitigation.learned import Learned

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

FOLDER = "learned"
SAFE = {"yes": True, "comply": True, "no": False, "refuse": False}


def check(arms: Mapping[str, Any], benchmark: Benchmark) -> None:
    """UserError for an arm that has to learn where there is nothing to learn from but the cases it is judged on."""
    for arm, method in arms.items():
        if isinstance(method, Learned) and benchmark.development() is None:
            raise UserError(
                f"arm {arm} ({type(method).__name__}) learns from a development split, and benchmark {benchmark.name} "
                "has none; leave it out, or learn it on another benchmark"
            )


def learned(
    arm: str, method: Learned, vlm: "VLM", samples: Sequence[Sample], out: Path, launch: Launch | None = None
) -> "Method":
    """``method`` as learned on ``samples`` into ``out``, a safetensors file, or read from it where it is there.

    The first process of ``launch`` (None: the current one) learns; the others wait and read. A learning that was killed
    leaves no ``out``.

    Raises:
        UserError: naming the arm, where these cases cannot teach it or ``out`` cannot be written.
    """
    launch = launch or Launch.current()
    try:
        if launch.first and not out.exists():
            _learn(method, vlm, samples, out)
        launch.wait()
        return method.read(out)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error


def examples(samples: Sequence[Sample]) -> "tuple[list[Prompt], list[bool]]":
    """The prompts that can teach, and for which Yes is right; without controls and pictures that do not open."""
    from interp.vlm import Prompt

    prompts: list[Prompt] = []
    safe: list[bool] = []
    for sample in samples:
        if sample.subset == "control":
            continue
        try:
            image = None if sample.image is None else open_image(sample.image)
        except BadImage:
            continue
        prompts.append(Prompt(sample.prompt, image, key=sample.id))
        safe.append(SAFE[sample.gold])
    return prompts, safe


def _learn(method: Learned, vlm: "VLM", samples: Sequence[Sample], out: Path) -> None:
    prompts, safe = examples(samples)
    if not prompts:
        raise UserError("no case of the development split can teach it; raise limit, or mend the images")
    draft = out.with_name(f"{out.stem}.part{out.suffix}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        method.learn(vlm, prompts, safe, out=draft)
        draft.replace(out)
    except OSError as error:
        raise UserError(
            f"cannot write {out} ({error.strerror or error}); make room and run the same command again"
        ) from error
