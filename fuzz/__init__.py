"""Random programs through every layer, judged by exact arithmetic or by other solvers: `python -m fuzz`."""
