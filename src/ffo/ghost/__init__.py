"""The ghost problem: three ways to solve it, the hypergradient and the certificate."""
