"""Write a file or a folder whole or not at all."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield a draft's path; at the end of the block the draft replaces ``target``.

    The draft is a sibling with the same ending, and each thread of each process has another name for it. The folder
    above is made. If the block raises, the draft goes and ``target`` stays as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.stem}.{os.getpid()}-{threading.get_ident()}.part{target.suffix}")
    try:
        yield draft
        if draft.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        draft.replace(target)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
