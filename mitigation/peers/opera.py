"""OPERA: beam search that trusts a beam less where its attention hangs on a few summary tokens, and takes back tokens.

Importing this module loads neither torch nor transformers; generating does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mitigation.method import Work
from mitigation.peers.opera_rule import OverTrustRule
from mitigation.validation import check_pictured

if TYPE_CHECKING:
    from interp.vlm import VLM, Generation, Prompt


@dataclass(frozen=True)
class OPERA(OverTrustRule):
    """OPERA (Huang et al., CVPR 2024, arXiv 2311.17911): beam search with an over-trust penalty and rollback.

    ω is the last layer's attention of a token of the answer, the maximum over heads, rescaled to sum to 1. At each step
    the ``candidates`` likeliest tokens of each of the ``beams`` are fed, each for itself, and scored by their logit
    less ``weight`` (α) times a penalty:

    - over-trust: φ = ``unit`` · max over c of Π over i ≥ c of σ·ω(i, c), over the tokens i and c of the answer, the
      candidate included (σ is ``scale``); the c of the maximum is the *summary token*;
    - for the first ``early`` tokens of the answer, minus the candidate's share of attention on the picture instead.

    A beam's probabilities are those of its candidates alone. Retrospection: where the same summary token s, the most
    frequent one, has been that of more than ``threshold`` (r) steps of every beam, the search goes back to behind s and
    chooses again, without what it chose there before; ``rollbacks`` (β) times at one place at most, then one token
    earlier. None: never. Beams have a length penalty of 1, as transformers' have.

    σ = 50, five beams, five candidates, α = 1, β = 5 and r = 15 are the paper's settings and the authors' defaults
    (github.com/shikiw/OPERA, ``opera_beam_search``). Where the paper is silent, or we could not check its text, this
    follows that code: attention on the picture for the first ten tokens, no rollback to one of them, φ times 10⁻⁷ (the
    paper has 1), no penalty on what is chosen anew (from the whole vocabulary), and a window that is the whole answer.
    It differs in three places: products are taken as sums of logarithms, where the code rounds them to 16 bits; a
    beam's history of summary tokens is its own when beams change places; and going back forgets what was rejected
    behind that place. ``weight`` = 0 with ``threshold`` = None and as many ``candidates`` as the vocabulary has tokens
    is plain beam search.

    Margins are read from the first token's penalised scores, before all but the candidates are left out; the beams may
    still end on another verdict. One forward of ``beams`` × ``candidates`` rows a token, and one of the whole answer
    for each rollback. Needs image tokens in the sequence, so IDEFICS and Llama 3.2 Vision are refused.
    """

    one_by_one: ClassVar[bool] = True

    @property
    def work(self) -> Work:
        """See ``mitigation.method.Abilities``; without the places that it goes back to, which depend on values."""
        return Work(branches=self.beams * self.candidates)

    def generate(self, vlm: "VLM", prompts: "Sequence[Prompt]", *, max_new_tokens: int) -> "Generation":
        """The best beam of each prompt, one prompt at a time, with margins of the penalised scores.

        Raises:
            UserError: a prompt has no image, the family has no image tokens in its sequence or no attention that can be
                read, or the model is being recorded or steered.
        """
        from mitigation.peers.opera_beam_search import search

        check_pictured(prompts, "OPERA looks at the attention on it")
        return search(vlm, prompts, self, max_new_tokens=max_new_tokens)
