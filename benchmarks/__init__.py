"""Benchmarks against the peers: `python -m benchmarks --all` (or `make bench`)."""
