"""The cone of positive semidefinite matrices.

A block is svec(S): the upper triangle stacked by columns, off-diagonals times sqrt 2, so that
svec(S)'svec(Y) = tr(SY). With W = S - tau Y = Q diag(eig) Q', Q = [V U] and eig = (-tau gamma, lambda):

    S = U diag(lambda) U',   Y = V diag(gamma) V'.

The derivative of the projection (Loewner) is diagonal in the orthonormal basis
svec(q_i q_j' + q_j q_i')/sqrt 2 (i < j), svec(q_i q_i'), with entries

    VV 0: normal, delta = 0      UU 1: free      UV lambda_j/(lambda_j + tau gamma_i): delta = lambda_j/gamma_i.

The case is the rank: the number of nonnegative eigenvalues of W. The distance to a change of rank is the
smallest absolute eigenvalue.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels.cones.rows import clear, hold, is_finite, weight
from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

_SQRT2 = float(np.sqrt(2.0))


@inner_kernel
def order_of(d: int) -> int:
    """k of d = k(k+1)/2."""
    return int((np.sqrt(8.0 * d + 1.0) - 1.0) / 2.0 + 0.5)


@inner_kernel
def smat(w: Array, W: Array) -> None:
    """Writes the symmetric matrix W (k, k) of w = svec(W)."""
    t = 0
    for q in range(len(W)):
        for p in range(q):
            W[p, q] = W[q, p] = w[t] / _SQRT2
            t += 1
        W[q, q] = w[t]
        t += 1


@inner_kernel
def eigen(w: Array) -> tuple[Array, Array]:
    """Eigenvalues (k,), ascending, and eigenvectors, the rows of a (k, k) array, of smat(w); w is finite."""
    k = order_of(w.size)
    W = np.empty((k, k))
    smat(w, W)
    eig, Q = np.linalg.eigh(W)
    for i in range(k):
        for j in range(k):
            W[i, j] = Q[j, i]
    return eig, W


@inner_kernel
def add_square(factor: float, a: Array, out: Array) -> None:
    """out += factor * svec(a a')."""
    t = 0
    for q in range(a.size):
        twice = _SQRT2 * factor * a[q]
        for p in range(q):
            out[t] += twice * a[p]
            t += 1
        out[t] += factor * a[q] * a[q]
        t += 1


@inner_kernel
def write_pair(a: Array, b: Array, out: Array) -> None:
    """out = svec(a b' + b a') / sqrt 2, a unit vector for orthonormal a and b."""
    t = 0
    for q in range(a.size):
        for p in range(q):
            out[t] = a[p] * b[q] + b[p] * a[q]
            t += 1
        out[t] = _SQRT2 * a[q] * b[q]
        t += 1


@inner_kernel
def positive_part(eig: Array, Q: Array, sign: float, out: Array) -> None:
    """out = svec of the sum of sign*eig_i q_i q_i' over the eigenvalues with sign*eig_i > 0."""
    fill(out, 0.0)
    for i in range(eig.size):
        if sign * eig[i] > 0.0:
            add_square(sign * eig[i], Q[i], out)


@inner_kernel
def project(w: Array, s: Array) -> None:
    """s = Pi_K(w), (d,)."""
    if not is_finite(w):
        fill(s, np.nan)
        return
    eig, Q = eigen(w)
    positive_part(eig, Q, 1.0, s)


@inner_kernel
def face(
    w: Array, tau: float, alpha: float, s: Array, v: Array, on: Array, delta: Array, R: Array
) -> tuple[int, float]:
    """The face at w (d,) = s - tau*y, see the package; returns (rank, smallest absolute eigenvalue).

    Rows are the pairs i <= j of eigenvectors, i running slowest: those that are on come first.
    """
    clear(on, delta, R)
    d, k = w.size, order_of(w.size)
    if not is_finite(w):
        fill(s, np.nan)
        fill(v, np.nan)
        return k, 0.0
    eig, Q = eigen(w)
    positive_part(eig, Q, 1.0, s)
    positive_part(eig, Q, -1.0, v)
    negative = 0
    while negative < k and eig[negative] < 0.0:
        negative += 1
    if negative == k:  # the vertex: any basis will do, take the sparse one
        for i in range(d):
            hold(i, on, R)
    else:
        _pairs(eig, Q, negative, tau, on, delta, R)
    margin = np.inf
    for i in range(k):
        margin = min(margin, abs(eig[i]))
    return k - negative, margin


@inner_kernel
def _pairs(eig: Array, Q: Array, negative: int, tau: float, on: Array, delta: Array, R: Array) -> None:
    """The VV and UV rows; the first `negative` eigenvectors are those of V."""
    d, k, r = on.size, eig.size, 0
    for i in range(negative):
        for j in range(i, k):
            row = R[r * d : (r + 1) * d]
            if i == j:
                add_square(1.0, Q[i], row)
            else:
                write_pair(Q[i], Q[j], row)
            on[r] = 1
            if j >= negative:
                delta[r] = weight(eig[j], -eig[i], tau)
            r += 1


@kernel
def project_blocks(w: Array, s: Array) -> None:
    """`project` for each row of w (N, d)."""
    for n in range(len(w)):
        project(w[n], s[n])
