"""Mitigations chosen on the development split and judged on the test split, in one table. ``study.py`` is the entry."""
