"""Compiled numerics, one sample at a time: arrays in, arrays out; the pool handles batches and threads."""
