"""Values of expressions in parameters alone, in the arrays of any framework.

CVXPY's atoms are translated once, when a layer is built: `evaluate.Expressions` holds the steps, and each step is one
function of the tables in `structure`, `elementwise` and `reductions`. These functions are written in NumPy's spelling
over a namespace `xp` that a front end passes in, and so differentiated by its own autograd.

Every value has the shape of its expression, or one batch dimension in front; functions work on trailing axes.
"""
