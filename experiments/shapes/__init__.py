"""Models without weights: known shapes with random weights, and a device that computes nothing."""
