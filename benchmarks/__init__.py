"""Benchmarks against other packages: `python -m benchmarks --all` (or `make bench`)."""
