"""Settings of mitigations: chosen on the development split and judged on the test split, or a whole grid shown.

``candidates.py`` has the grids and the rule that chooses. Tasks: ``study.py`` (``+exp=mitigation_selection``) chooses
and judges, ``vcd_grid.py`` shows VCD's grid against every constant shift, ``regrid.py`` scores a grid on kept logits.
"""
