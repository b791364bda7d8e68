"""The laboratory of the bundled models: how they were made, and trials that only they can stand.

Our evidence, not your tool: nothing outside this folder imports it. What you run on a model of yours is in
``experiments/studies``.
"""
