"""Cones, one file each: compiled projection and face of one block, called by `ffo.cones` and the Newton loop.

`face(w, tau, alpha, s, v, on, delta, R) -> (case, margin)` for the cones with dense rows (PSD, exponential, power):

    w (d,), tau    the block w = s - tau*y; alpha is the exponent of the power cone, ignored by the others
    s, v (d,)      out: the Moreau decomposition w = s - v, s = Pi_K(w) in K, v = tau*y in K*
    on (d,)        out, uint8: whether row r belongs to the face; a row that is off is a free direction, or none
    delta (d,)     out: weight of row r, 0 for a normal row, 1/h for a row with curvature h
    R (d*d,)       out: row r of the face is R[r*d:(r+1)*d], zero where it is off; rows that are on are orthonormal
    case, margin   equal codes mean the same active structure; distance of w to the nearest change of case
                   (a lower bound where no closed form exists: interior and vertex of exp and pow)

so that D Pi_K(w) = I - sum over rows r of tau/(tau + delta_r) R_r R_r'. The second-order cone keeps its rows sparse and
has its own signature (`soc.face`). The case is decided by where w projects. On the border between two cases the one
closer to the interior is taken: w = 0 has no rows.

A block that is not finite gets s = v = NaN, no rows, the case of the interior (full rank for PSD) and the margin 0;
nothing raises.
"""
