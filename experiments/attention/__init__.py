"""Where the verdict's attention goes in failures and in matched successes, and what the image does to the margin."""

from experiments.attention.analysis import analyse_failures

__all__ = ["analyse_failures"]
