"""The main memory of this process. Imports no torch."""

import ctypes

M_MMAP_THRESHOLD = -3  # glibc's malloc.h
MEBIBYTE = 2**20


def return_freed_blocks() -> None:
    """Makes glibc return every freed tensor of a MiB or more at once, in this process.

    Otherwise it keeps some, by the order of earlier allocations: equal forwards peak 200 MiB apart, and a process that
    answers for days grows. Does nothing where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MEBIBYTE)
