"""Ablating the direction of "unsafe", and the controls for it: what refuses, and what else hangs on it?

After Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717. Importing
this module loads neither torch nor transformers; learning and generating do.
"""

import random
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from interp.errors import UserError
from interp.tensor_file import check_model, digest_of, read_tensors, write_tensors
from mitigation.activation_steering import says_yes
from mitigation.method import TrainedFile
from mitigation.validation import check_point, check_seed
from mitigation.wrappers import with_model

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from interp.vlm import VLM, Generation, Prompt

BY = ("verdict", "truth")
TO = ("zero", "safe")
DEEPEST = 0.8  # of the layers: Arditi et al. take no direction from the last fifth, which holds the answer's own tokens
CHOOSING_CASES = 128


@dataclass(frozen=True)
class AblateDirection:
    """Learns the direction from cases called safe to cases called unsafe, and answers without it.

    It is the difference of the means at the verdict's column, between the cases that the model itself calls unsafe and
    those that it calls safe (``by`` verdict; for open answers take ``by`` truth: unsafe against safe cases). Of the
    points of the first four fifths of the layers the one is taken (or ``point``) whose removal raises the Yes/No margin
    of cases called unsafe the most; their second criterion, that harmless answers stay as they are, is not applied, for
    the tables report it. With ``weights`` the answers are those of a checkpoint whose weights were made orthogonal to
    the direction, saved beside what was learned; they agree with the projection while running. ``shuffle`` deals the
    labels out at random with this seed: the control for what any such direction does.

    ``to`` zero is their ablation: every state at every position and point loses its component. Zero is a place of its
    own, which may lie far outside all states; ``to`` safe sets the component at the verdict and at generated tokens to
    the mean of the cases called safe, point by point (arXiv 2411.09003).
    """

    by: str = "verdict"
    to: str = "zero"
    point: int | None = None
    weights: bool = False
    shuffle: int | None = None

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        for name, value, known in (("by", self.by, BY), ("to", self.to, TO)):
            if value not in known:
                raise UserError(f"{name}={value!r}: must be one of {', '.join(known)}")
        if self.weights and self.to != "zero":
            raise UserError(f"weights=true with to={self.to!r}; weights can only be made orthogonal; set to=zero")
        check_point(self.point)
        if self.shuffle is not None:
            check_seed(self.shuffle)

    def learn(self, vlm: "VLM", prompts: "Sequence[Prompt]", safe: Sequence[bool], *, out: Path) -> "LearnedAblation":
        """The direction of all cases at the best point.

        Raises:
            UserError: a kind of case is missing.
        """
        from interp.directions import fit_direction
        from interp.hooks.residual import last_layer, residuals

        last = last_layer(vlm)
        points = tuple(range(1, max(1, int(DEEPEST * last)) + 1)) if self.point is None else (self.point,)
        unsafe = [not yes for yes in (says_yes(vlm, prompts) if self.by == "verdict" else safe)]
        suspects = [prompt for prompt, label in zip(prompts, unsafe, strict=True) if label]
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(unsafe)
        read = residuals(vlm, prompts, layers=range(1, last + 1))
        questions = [prompt.text for prompt in prompts]
        fitted = [
            fit_direction(read.at("verdict", point), unsafe, questions, name="unsafe", place="verdict", layer=point)
            for point in points
        ]
        suspects = suspects[:: max(1, len(suspects) // CHOOSING_CASES)]
        chosen = max(fitted, key=lambda direction: _bypass(vlm, suspects, direction.vector))
        calm = [row for row, label in enumerate(unsafe) if not label]
        levels = (read.values[0][:, calm] @ chosen.vector).mean(1)
        about = {name: getattr(chosen, name) for name in ("auroc", "gap", "n", "positives")} | {"point": chosen.layer}
        tensors = {"vector": chosen.vector, "levels": levels}
        write_tensors(out, LearnedAblation.KIND, tensors, about, vlm=vlm)
        return self.read(out)

    def read(self, out: Path) -> "LearnedAblation":
        """What was learned into ``out``.

        Raises:
            UserError: the file is another method's.
        """
        read_tensors(out, LearnedAblation.KIND)
        return LearnedAblation(out, digest_of(out), self.to, self.weights)


@dataclass(frozen=True)
class LearnedAblation(TrainedFile):
    """What ``AblateDirection`` has learned, in use; see there.

    ``about`` holds ``point``, ``n``, ``positives``, the held-out ``auroc`` and the ``gap`` between the means.
    """

    KIND: ClassVar[str] = "AblateDirection"
    to: str = "zero"
    weights: bool = False

    def direction(self, vlm: "VLM") -> "Float[Tensor, 'width']":
        """The unit vector.

        Raises:
            UserError: it was learned on another model.
        """
        vector = self._vectors.tensors["vector"]
        check_model(vlm, self._vectors, len(vector))
        return vector

    def checkpoint(self, vlm: "VLM") -> Path:
        """The folder with the orthogonalised weights of ``vlm``, beside the direction's file; made where it is not.

        Made under another name and put there in one step: several processes may ask at once, and be killed at it.

        Raises:
            UserError: as ``orthogonalised``, and for a folder that holds something else.
        """
        direction, folder = self.direction(vlm), self.path.with_suffix("")
        card = folder / "README.md"
        if not card.is_file():
            self._make(vlm, direction, folder)
        if self.digest not in card.read_text(encoding="utf-8"):
            raise UserError(
                f"{folder} holds weights without another direction than that of {self.path.name} ({self.digest}); "
                "delete the folder and ask again"
            )
        return folder

    def _make(self, vlm: "VLM", direction: "Float[Tensor, 'width']", folder: Path) -> None:
        from mitigation.orthogonalization import orthogonalised

        n, unsafe = self.about["n"], self.about["positives"]
        why = (
            f"The direction: difference of means at the verdict, point {self.about['point']}, between {unsafe} "
            f"cases called unsafe and {n - unsafe} others (file {self.path.name}, {self.digest})."
        )
        draft = folder.with_name(f"{folder.name}.part-{uuid.uuid4().hex}")
        try:
            orthogonalised(vlm, direction, draft, why=why)
            draft.rename(folder)
        except OSError as error:
            if not (folder / "README.md").is_file():  # else another process was first
                raise UserError(
                    f"cannot write {folder} ({error.strerror or error}); make room, delete what is there, and run the "
                    "same command again"
                ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers without the direction, with margins to match.

        Raises:
            UserError: it was learned on another model.
        """
        if self.weights:
            other = _loaded(self.checkpoint(vlm), self.digest, str(vlm.dtype).removeprefix("torch."), str(vlm.device))
            return with_model(vlm, other).generate(prompts, max_new_tokens=max_new_tokens)
        from mitigation.orthogonalization import levelled, projected

        direction = self.direction(vlm)
        levels = self._vectors.tensors["levels"]
        with projected(vlm, direction) if self.to == "zero" else levelled(vlm, direction, levels):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class AblateRandom:
    """The control: a direction drawn evenly from the sphere with ``seed`` is projected out in the same way."""

    seed: int = 0

    def __post_init__(self) -> None:
        """UserError naming the value and its range."""
        check_seed(self.seed)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """Greedy answers without the drawn direction, with margins to match."""
        import torch

        from mitigation.orthogonalization import projected

        width = vlm.model.config.get_text_config().hidden_size
        drawn = torch.randn(width, generator=torch.Generator().manual_seed(self.seed))
        with projected(vlm, drawn):
            return vlm.generate(prompts, max_new_tokens=max_new_tokens)


def _bypass(vlm: "VLM", prompts: "Sequence[Prompt]", direction: "Tensor", *, batch_size: int = 32) -> float:
    """The mean margin without the direction: high where cases called unsafe are called safe then."""
    from mitigation.orthogonalization import projected

    with projected(vlm, direction):
        batches = [prompts[first : first + batch_size] for first in range(0, len(prompts), batch_size)]
        return sum(float(vlm.score(batch).sum()) for batch in batches) / len(prompts)


@lru_cache(maxsize=1)  # several batches ask one after the other
def _loaded(folder: Path, digest: str, dtype: str, device: str) -> "VLM":
    from interp.vlm import load

    return load(folder, dtype=dtype, device=device)
