"""Mitigations chosen on the development split and judged on the test split, in one table. ``task.py`` is the entry."""
