"""Compiled numerics, one sample at a time: arrays in, arrays out; batching and threads are the pool's job."""
