"""The default tolerances, steps and sizes of clusterjax. The functions that have these defaults import them from here.

A relative tolerance is a share of the quantity; an absolute one is in units of the tokens.
"""

# `simulate`: the relative and the absolute error of one step, and the largest number of steps.
RTOL, ATOL, MAX_STEPS = 1e-6, 1e-8, 16_384
# `coarsen`: the error of one step, for positions and for the relative error of times; for more than 4,096 tokens the
# root mean square error of tokens; and the largest number of steps.
COARSEN_ACCURACY, COARSEN_MANY_ACCURACY, COARSEN_MAX_STEPS = 1e-10, 1e-6, 100_000
# `limit_shape`: the distance to a shape within which tokens fit it.
SHAPE_TOLERANCE = 1e-3
# `MeanField`: the share of a density in its highest degrees, beyond which the degree no longer resolves the density.
TAIL_TOLERANCE = 1e-5
# `HardmaxAttention`: the relative tolerance of ties, in machine epsilons of the dtype of the tokens.
TIE_EPSILONS = 64
# `hardmax.limit_set` and `hardmax.certificate`: the largest number of layers.
DEPTH = 100_000
# `Rodas5P`: the largest length of a step, in e-foldings of the fastest-growing perturbation.
MAX_GROWTH = 1.0
