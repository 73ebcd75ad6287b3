"""Algorithm 1 for problems whose objective and constraints are differentiable functions (torch)."""
