"""VRTuning-style adapters trained and judged in one run: data, training, utility, attention, study, tables."""
