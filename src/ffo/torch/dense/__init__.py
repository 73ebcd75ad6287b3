"""Batches of small or dense quadratic programs, as sequences of batched operations on any device."""
