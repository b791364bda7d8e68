"""``task=plan``: an estimate of what a command's answers will need, before any weights are there."""
