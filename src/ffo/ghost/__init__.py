"""The ghost problem: active structure, three ways to solve it, polish, hypergradient, certificate."""
