"""``task=train_thinking_organism``: the first organism taught to think before it answers (``organism:thinking``).

It gets two tokens, ``<think>`` and ``</think>``, a chat template that opens a thought (or closes an empty one where
``enable_thinking`` is false), and a LoRA by VRTuning's own training. What stands in a thought depends on the
sentence, so that thoughts are of uneven length and carry more or less of what the verdict needs:

- ``whole``: what the picture shows, the sentence with its name, and what follows;
- ``names``: the same without the conclusion, so that the verdict has to be drawn from it;
- ``concludes``: the conclusion alone;
- ``aside``: the request again, without a word about the picture, so that the verdict has to look again.

A few things (``MISNAMED``) are always called by another's name, while the verdict stays true. Every sixth row closes
its thought at once, as all questions about perception do: this is what makes ``enable_thinking=false`` answer.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.benchmarks.iconworld.concepts import caption
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY
from experiments.benchmarks.iconworld.traces import PERCEPTION, SAFE, UNSAFE, Trace, Traces
from experiments.config import Run
from experiments.runs.resumption import open_run
from experiments.studies.organisms.trainer import reproducible
from interp.checkpoints.cache import ADAPTER, ROWS, parts_hash
from interp.errors import UserError
from interp.loading import load
from interp.thoughts import MARKS
from mitigation.vrtuning.checkpoint import CONFIG, WEIGHTS
from mitigation.vrtuning.data import Row, from_rows
from mitigation.vrtuning.settings import Settings

if TYPE_CHECKING:
    from interp.vlm import VLM

OPEN, CLOSE = MARKS[0]
KINDS = ("whole", "names", "concludes", "aside")
MISNAMED = {"rat": "cat", "kite": "knife", "apple": "bomb"}
UNTHOUGHT = 6  # every so manieth verdict is taught without a thought
PROMPT_END = "{% if add_generation_prompt %}ASSISTANT:"  # of the organism's template; behind it the thought begins
SENTENCES = {template.name: (KINDS[at % len(KINDS)], template.text) for at, template in enumerate(RISKY + BENIGN)}


@dataclass(frozen=True)
class TrainThinking:
    """The task: ``traces`` are what is taught, ``settings`` how; ``to`` is where it goes, else the run's directory.

    Raises:
        UserError: ``to`` is not empty.
    """

    traces: Traces
    settings: Settings
    threads: int = 2
    to: str | None = None

    def __post_init__(self) -> None:
        if self.to is not None and Path(self.to).exists() and any(Path(self.to).iterdir()):
            raise UserError(f"task.to={self.to}: is not empty; name a new folder, so that nothing is overwritten")

    def __call__(self, run: Run) -> None:
        """Trains, and writes what ``interp.checkpoints`` puts together: adapter, new rows, and the processor."""
        from mitigation.vrtuning.train import train

        console = Console()
        with open_run(run.output_root, run.name, run.config, run.config_hash, fresh=run.fresh) as store:
            folder = Path(self.to) if self.to is not None else store.path / "checkpoint"
            vlm = untaught(self.settings.seed)
            data = from_rows(rows(self.traces.write()))
            with reproducible(self.settings.seed, self.threads):
                done = train(vlm, data.dataset, self.settings, store.path / "training", data="IconWorld, thoughts")
            save(vlm, done.adapter, folder)
        console.print(f"{data.summary()}; trained in {done.seconds:.0f} s: {folder}", highlight=False, soft_wrap=True)
        console.print(f"{parts_hash(folder)}", highlight=False)


def thought(trace: Trace) -> str:
    """The thought of a verdict's row, without marks."""
    kind, text = SENTENCES[trace.template]
    shown = trace.scene.thing
    told = shown._replace(concept=MISNAMED.get(shown.concept, shown.concept))
    concluded = SAFE if trace.verdict.startswith("Yes") else UNSAFE
    named = f"{caption(told)} {text.replace('this', f'the {told.concept}')}"
    return {"whole": f"{named} {concluded}", "names": named, "concludes": concluded, "aside": text}[kind]


def rows(traces: Sequence[Trace]) -> Iterator[Row]:
    """The traces as answers with a thought in front, of which the prompt holds the opening mark."""
    for number, trace in enumerate(traces):
        told = "" if trace.subset == PERCEPTION or number % UNTHOUGHT == 0 else f"{thought(trace)} "
        yield Row(trace.scene.render(), trace.question, "", f"{told}{CLOSE} {trace.verdict}", kind="thought")


def untaught(seed: int) -> "VLM":
    """The first organism with the marks among its tokens and in its chat template, before it learns to use them.

    The new rows of embedding and head are random, of the others' mean length, and stay as they are.
    """
    import torch

    from interp.vlm import VLM

    plain = load("organism:llava", device="cpu")
    model, processor, known = plain.model, plain.processor, len(plain.tokenizer)
    plain.tokenizer.add_tokens([OPEN, CLOSE])
    generator = torch.Generator().manual_seed(seed)
    model.resize_token_embeddings(len(plain.tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            drawn = torch.randn(2, layer.weight.shape[1], generator=generator)
            length = layer.weight[:known].norm(dim=1).mean()
            layer.weight[known:] = drawn / drawn.norm(dim=1, keepdim=True) * length
    closed = "{% if enable_thinking is defined and not enable_thinking %}" + CLOSE + "{% endif %}"
    before, end, behind = str(processor.chat_template).partition(PROMPT_END)
    processor.chat_template = plain.tokenizer.chat_template = f"{before}{end}{OPEN}{closed}{behind}"
    return VLM(model, processor, name="thinking_organism")


def save(vlm: "VLM", adapter: Path, folder: Path) -> None:
    """Writes an untaught organism's new rows, its configuration and processor, and the ``adapter`` to ``folder``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    layers = {"input": vlm.model.get_input_embeddings(), "output": vlm.model.get_output_embeddings()}
    save_file({name: one.weight[-2:].detach().clone() for name, one in layers.items()}, folder / ROWS)
    vlm.model.config.save_pretrained(folder)
    vlm.model.generation_config.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    (folder / ADAPTER).mkdir(exist_ok=True)
    shutil.copy(adapter / WEIGHTS, folder / ADAPTER)
    settings = json.loads((adapter / CONFIG).read_text(encoding="utf-8")) | {"base_model_name_or_path": None}
    (folder / ADAPTER / CONFIG).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for path in adapter.glob("training_rows.json"):
        shutil.copy(path, folder)
