"""VRTuning-style adapters, trained and evaluated in one run."""
