"""``forestlens explore``: a page on this machine to ask a model about a picture, look inside, and change what is there.

``explore(vlm)`` opens the same page in a notebook.
"""

from experiments.serving.exploring.notebook import explore

__all__ = ["explore"]
