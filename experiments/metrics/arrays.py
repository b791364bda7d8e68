"""Names of the arrays that metrics are computed from."""

import numpy as np
from jaxtyping import Bool, Float, Int

Mask = Bool[np.ndarray, "case"]
Values = Float[np.ndarray, "case"]
Codes = Int[np.ndarray, "case"]  # of clusters, folds or families, from 0
Weights = Bool[np.ndarray, "case"] | Int[np.ndarray, "case"]  # a mask, or how often each case counts
Pairs = Int[np.ndarray, "pair 2"]  # positions of two cases
Draws = Float[np.ndarray, "draw"]  # a quantity in every bootstrap sample
TwoDraws = Float[np.ndarray, "2 draw"]
