"""``task=plan``: what an experiment will need, by its own code on a device that computes nothing."""
