"""Visual contrastive decoding over a grid of weights and noise steps, against every constant shift of the margin."""
