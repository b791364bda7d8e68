"""``+exp=mitigation_selection``: settings of mitigations, chosen on the development split, judged on the test split.

``candidates.py`` has the grids and the rule that chooses, ``study.py`` the task, ``tables.py`` what comes of it.
"""
