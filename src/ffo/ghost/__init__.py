"""The ghost problem: three ways to solve it, hypergradient, certificate."""
