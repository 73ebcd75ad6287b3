"""Second-order cones of a batch: K = {(s0, s1) : |s1| <= s0}, several of any sizes next to each other.

Vectors are (batch, rows), the rows of all cones one after the other; numbers for each cone are (batch, cones). The
projection and its faces are those of `ffo.kernels.cones.soc`, the scaling is Nesterov and Todd's: with unit vectors
(in the sense of x0^2 - |x1|^2 = 1) of s and y,

    w = (s + Jy) / |s + Jy|,   eta^4 = (s0^2 - |s1|^2) / (y0^2 - |y1|^2),   W = eta (2 v v' - J) with v^2 = w,

W is symmetric, and Wy = W^-1 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

Tensor = torch.Tensor
TINY = 1e-300


@dataclass(frozen=True)
class ConeLayout:
    """Where the cones are: `of` (rows,) the cone of each row, `head` (cones,) the row s0 of each, `tail` (rows,) true
    at the others, `member` (rows, cones) 1 where a row belongs to a cone, `sizes` (cones,)."""

    of: Tensor
    head: Tensor
    tail: Tensor
    member: Tensor
    sizes: Tensor

    def total(self, v: Tensor) -> Tensor:
        """(batch, rows) -> (batch, cones), sums over each cone."""
        return v @ self.member

    def spread(self, a: Tensor) -> Tensor:
        """(batch, cones) -> (batch, rows). For a single cone, a view: gathers would be a seventh of a step."""
        return a.expand(-1, len(self.of)) if len(self.head) == 1 else a.index_select(1, self.of)

    def heads(self, v: Tensor) -> Tensor:
        return v[:, :1] if len(self.head) == 1 else v.index_select(1, self.head)

    def dot(self, v: Tensor, w: Tensor) -> Tensor:
        """(batch, cones) v1'w1."""
        return self.total(torch.where(self.tail, v * w, 0.0))

    def norm(self, v: Tensor) -> Tensor:
        """(batch, cones) |v1|, without overflow."""
        tail = torch.where(self.tail, v, 0.0)
        size = tail.abs().amax(dim=1, keepdim=True).clamp_min(TINY)
        return self.total((tail / size).square()).sqrt() * size

    def sums(self, v: Tensor, R: Tensor) -> Tensor:
        """(batch, cones, n) v'R of each cone, for rows R (batch or 1, rows, n)."""
        weights = self.member.mT.unsqueeze(0) * v.unsqueeze(1)
        return weights @ (R[0] if len(R) == 1 else R)  # one product if the rows are shared

    def joined(self, head: Tensor, tail: Tensor) -> Tensor:
        """Heads (batch, cones) and tails (batch, rows) as one vector (batch, rows)."""
        return torch.where(self.tail, tail, self.spread(head))

    def unit(self, like: Tensor) -> Tensor:
        """(1, rows) the vector (1, 0) of every cone."""
        return (~self.tail).to(like.dtype).unsqueeze(0)


@lru_cache(maxsize=64)
def cone_layout(sizes: tuple[int, ...], device: torch.device) -> ConeLayout:
    """The layout of cones of these sizes."""
    with torch.inference_mode(False):
        dims = torch.tensor(sizes)
        of = torch.repeat_interleave(torch.arange(len(sizes)), dims)
        head = dims.cumsum(0) - dims
        tail = torch.ones(len(of), dtype=torch.bool)
        tail[head] = False
        member = torch.nn.functional.one_hot(of, len(sizes)).to(torch.float64)
        return ConeLayout(*(t.to(device) for t in (of, head, tail, member, dims.to(torch.float64))))


@dataclass(frozen=True)
class ConePair:
    """w = s - v, s and v in K and orthogonal (batch, rows); the case of each cone (batch, cones): 0 w in K (v = 0),
    1 -w in K (s = 0), 2 neither; and the distance of w to the other cases (batch, cones)."""

    s: Tensor
    v: Tensor
    case: Tensor
    margin: Tensor


def split(cones: ConeLayout, w: Tensor) -> ConePair:
    n, w0 = cones.norm(w), cones.heads(w)
    inside, outside = n <= w0, n <= -w0
    case = torch.where(inside, 0, torch.where(outside, 1, 2)).to(torch.int8)
    u = w / cones.spread(n.clamp_min(TINY))
    s0, v0 = 0.5 * (n + w0), 0.5 * (n - w0)
    s = cones.joined(s0, cones.spread(s0) * u)
    v = cones.joined(v0, -cones.spread(v0) * u)
    at = cones.spread(case)
    s, v = torch.where(at == 2, s, torch.where(at == 0, w, 0.0)), torch.where(at == 2, v, torch.where(at == 1, -w, 0.0))
    flat = torch.where(cones.sizes > 1, 0.5, 1.0).sqrt()
    return ConePair(s, v, case, torch.minimum((n - w0).abs(), (n + w0).abs()) * flat)


def determinant(cones: ConeLayout, v: Tensor) -> Tensor:
    """(batch, cones) v0^2 - |v1|^2."""
    n, v0 = cones.norm(v), cones.heads(v)
    return (v0 - n) * (v0 + n)


@dataclass(frozen=True)
class ConeScaling:
    """w (batch, rows) and eta (batch, cones)."""

    cones: ConeLayout
    w: Tensor
    eta: Tensor

    @classmethod
    def of(cls, cones: ConeLayout, s: Tensor, y: Tensor) -> ConeScaling:
        """The scaling of points s and y inside K."""
        size_s, size_y = (determinant(cones, v).clamp_min(TINY).sqrt() for v in (s, y))
        s, y = s / cones.spread(size_s), y / cones.spread(size_y)
        both = cones.joined(cones.heads(s) + cones.heads(y), s - y)
        length = (2.0 * (1.0 + cones.total(s * y))).clamp_min(TINY).sqrt()
        tail = both / cones.spread(length)
        head = (1.0 + cones.norm(tail).square()).sqrt()  # exactly of unit length
        return cls(cones, cones.joined(head, tail), (size_s / size_y).sqrt())

    def forth(self, v: Tensor) -> Tensor:
        """W v."""
        return self._product(v, 1.0) * self.cones.spread(self.eta)

    def back(self, v: Tensor) -> Tensor:
        """W^-1 v."""
        return self._product(v, -1.0) / self.cones.spread(self.eta)

    def _product(self, v: Tensor, sign: float) -> Tensor:
        w0, v0, dot = self.cones.heads(self.w), self.cones.heads(v), self.cones.dot(self.w, v)
        tail = v + self.w * self.cones.spread(sign * v0 + dot / (1.0 + w0))
        return self.cones.joined(w0 * v0 + sign * dot, tail)

    def back_rows(self, R: Tensor) -> Tensor:
        """(batch, rows, n) W^-1 R for R (batch or 1, rows, n)."""
        cones, w = self.cones, self.w
        dot, R0 = cones.sums(torch.where(cones.tail, w, 0.0), R), R[:, cones.head]
        w0 = cones.heads(w).unsqueeze(2)
        head, factor = w0 * R0 - dot, dot / (1.0 + w0) - R0
        tail = R + w.unsqueeze(2) * factor[:, cones.of]
        return torch.where(cones.tail.unsqueeze(1), tail, head[:, cones.of]) / cones.spread(self.eta).unsqueeze(2)

    def sparse(self) -> tuple[Tensor, Tensor, Tensor]:
        """d, a and b (batch, rows) with W^-2 = diag(d) + a a' - b b' on each cone, diag(d) - b b' positive definite
        (Domahidi, Chu and Boyd 2013, in the form of Clarabel)."""
        cones, w = self.cones, self.w
        w0 = cones.heads(w)
        size = 2.0 * w0.square() - 1.0  # w0^2 + |w1|^2
        d0 = 0.5 / size
        a0 = (size - d0).sqrt()
        b1 = (2.0 * (2.0 + 1.0 / size) / (2.0 * size - 1.0 / size)).sqrt()
        eta = cones.spread(self.eta)
        d = cones.joined(d0, torch.ones_like(w)) / eta.square()
        a = cones.joined(a0, -w * cones.spread(2.0 * w0 / a0)) / eta
        return d, a, cones.joined(torch.zeros_like(w0), -w * cones.spread(b1)) / eta


def jordan(cones: ConeLayout, x: Tensor, y: Tensor) -> Tensor:
    """The product x o y = (x'y, x0 y1 + y0 x1)."""
    x0, y0 = cones.spread(cones.heads(x)), cones.spread(cones.heads(y))
    return cones.joined(cones.total(x * y), x0 * y + y0 * x)


def divided(cones: ConeLayout, x: Tensor, d: Tensor) -> Tensor:
    """y with x o y = d."""
    x0, d0 = cones.heads(x), cones.heads(d)
    y0 = (x0 * d0 - cones.dot(x, d)) / determinant(cones, x).clamp_min(TINY)
    return cones.joined(y0, (d - cones.spread(y0) * x) / cones.spread(x0))


def longest(cones: ConeLayout, x: Tensor, d: Tensor) -> Tensor:
    """(batch,) the largest step from x inside K along d that stays in K."""
    size = determinant(cones, x).clamp_min(TINY).sqrt()
    x, d = x / cones.spread(size), d / cones.spread(size)
    x0, d0 = cones.heads(x), cones.heads(d)
    along = x0 * d0 - cones.dot(x, d)
    tail = d - x * cones.spread((along + d0) / (x0 + 1.0))
    return 1.0 / (cones.norm(tail) - along).amax(dim=1).clamp_min(TINY)
