"""Random right-hand sides that reveal null vectors of a matrix: they have a component along each of them."""

from __future__ import annotations

#: Their seed. Problems are often random too, with seeds such as 0 or 1. A probe with the same numbers may lie in the
#: range of the matrix built from them, and then reveals nothing.
PROBE = 0x9E3779B9
