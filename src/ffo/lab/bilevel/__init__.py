"""Bilevel experiments: calls until a point is stationary, and the cost of one hypergradient."""
