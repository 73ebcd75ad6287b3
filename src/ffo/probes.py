"""Random right-hand sides show what a matrix leaves free: a share of them lies along any null vector."""

from __future__ import annotations

#: Their seed. Problems are often drawn at random too, from seeds such as 0 or 1, and a probe that repeats their
#: numbers is no probe: it may lie in the range of the very matrix that they make.
PROBE = 0x9E3779B9
