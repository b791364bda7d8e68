"""The direction of "unsafe" taken out: what happens to over-caution, and what to safety? ``task.py`` is the entry."""
