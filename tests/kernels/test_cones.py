"""The compiled faces of single blocks, called the way the Newton loop calls them.

Properties of every cone (projections of known pairs, margins, ties) are tested in `tests/cones`, on the same kernels;
here are the arrays they write, and blocks that must not disturb others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from outer import outer

from ffo.kernels.cones import exponential, power, psd, roots, rows, soc
from ffo.kernels.cones.roots import FIRST_STEP, MAX_STEPS
from ffo.kernels.cones.rows import BOUNDARY, INTERIOR, MAX_RATIO, VERTEX

Array = np.ndarray
SCALES = [1e-8, 1e-4, 1.0, 1e4, 1e8]
TAU = 0.3

FACES = {cone: outer(cone.face) for cone in (exponential, power, psd, soc)}
PROJECTIONS = {cone: outer(cone.project) for cone in (exponential, power, psd, soc)}
dikin_radius, root_step = outer(roots.dikin_radius), outer(roots.root_step)
unit_scale, weight = outer(rows.unit_scale), outer(rows.weight)


@dataclass(frozen=True)
class Face:
    """What a kernel returned for one block; R (d, d), u (d,) for the second-order cone."""

    case: int
    margin: float
    s: Array
    v: Array
    on: Array
    delta: Array
    R: Array

    def derivative(self, tau: float) -> Array:
        """D Pi = I - sum of tau/(tau + delta) r r' over the rows, which are orthonormal."""
        T, delta = self.R[self.on == 1], self.delta[self.on == 1]
        np.testing.assert_allclose(T @ T.T, np.eye(len(T)), atol=2e-15 * max(1, len(T)))
        return np.eye(len(self.s)) - (T.T * (tau / (tau + delta))) @ T


def dense_face(cone: ModuleType, w: Array, tau: float = TAU, alpha: float = 0.0) -> Face:
    """The outputs start as garbage, as in a Newton loop that reuses its arrays."""
    d = len(w)
    s, v, delta = np.full((3, d), np.nan)
    on, R = np.full(d, 7, dtype=np.uint8), np.full(d * d, np.nan)
    case, margin = FACES[cone](w, tau, alpha, s, v, on, delta, R)
    return Face(case, margin, s, v, on, delta, R.reshape(d, d))


def soc_face(w: Array, tau: float = TAU) -> tuple[Face, Array]:
    """The face with the rows T (d, d) of the sparse form, and u."""
    d = len(w)
    s, v, delta, u = np.full((4, d), np.nan)
    on = np.full(d, 7, dtype=np.uint8)
    case, margin = FACES[soc](w, tau, s, v, on, delta, u)
    T = np.eye(d)
    T[0] -= u
    return Face(case, margin, s, v, on, delta, T), u


def central_differences(project: Callable[[Array, Array], None], w: Array, step: float) -> Array:
    """(d, d) Jacobian of a kernel `project(w, s)`, fourth order."""

    def at(point: Array) -> Array:
        out = np.empty(len(point))
        project(point, out)
        return out

    columns = [
        8 * (at(w + step * e) - at(w - step * e)) - (at(w + 2 * step * e) - at(w - 2 * step * e))
        for e in np.eye(len(w))
    ]
    return np.stack(columns, axis=1) / (12 * step)


#: cone, alpha, block: one of each case, all well inside it
EXPONENTIAL = {
    INTERIOR: [0.2, 1.0, 3.0],
    VERTEX: [0.5, -1.0, -2.0],
    BOUNDARY: [1.0, 0.6, 0.4],
    exponential.FACE: [-1.0, -0.6, 0.7],
    exponential.RAY: [-1.0, -0.6, -0.7],
}
POWER = {
    INTERIOR: [1.0, 1.3, 0.4],
    VERTEX: [-1.0, -1.3, 0.4],
    BOUNDARY: [0.3, -0.2, 1.0],
    power.Y_RAY: [-0.6, 1.5, 0.0],
    power.X_RAY: [1.5, -0.6, 0.0],
}
DENSE = [(exponential, 0.0, case, w) for case, w in EXPONENTIAL.items()]
DENSE += [(power, alpha, case, w) for alpha in (0.2, 0.7) for case, w in POWER.items()]
for order in (1, 2, 3, 8):
    for rank in range(order + 1):
        rng = np.random.default_rng(10 * order + rank)
        Q = np.linalg.qr(rng.standard_normal((order, order)))[0]
        eig = np.where(np.arange(order) < rank, 1.0, -1.0) * rng.uniform(0.3, 2, order)
        W = (Q * eig) @ Q.T
        svec = [W[i, j] * (1.0 if i == j else np.sqrt(2.0)) for j in range(order) for i in range(j + 1)]
        DENSE.append((psd, 0.0, rank, svec))


def projection(cone: ModuleType, alpha: float) -> Callable[[Array, Array], None]:
    project = PROJECTIONS[cone]
    return (lambda w, s: project(w, alpha, s)) if cone is power else project


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("cone", "alpha", "case", "block"), DENSE, ids=lambda v: getattr(v, "__name__", None))
def test_rows_are_the_derivative_of_the_projection(
    cone: ModuleType, alpha: float, case: int, block: list[float], scale: float
) -> None:
    w = scale * np.array(block)
    face = dense_face(cone, w, TAU, alpha)
    assert face.case == case
    assert face.margin > 0
    np.testing.assert_allclose(face.s - face.v, w, rtol=0, atol=4e-15 * scale)
    assert abs(face.s @ face.v) <= 1e-14 * scale**2
    assert not face.R[face.on == 0].any()
    assert not face.delta[face.on == 0].any()
    ray = cone is power and case > BOUNDARY  # the projection has no second derivative there
    step = 1e-4 if ray else 1e-3
    expected = central_differences(projection(cone, alpha), w, step * scale)
    np.testing.assert_allclose(face.derivative(TAU), expected, rtol=0, atol=1e-4 if ray else 2e-9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("case", "block"),
    [
        (INTERIOR, [1.0]),
        (VERTEX, [-1.0]),
        (INTERIOR, [2.0, 1.0]),
        (BOUNDARY, [0.3, 1.0]),
        (BOUNDARY + 1, [0.3, -1.0]),
        (VERTEX, [-2.0, 1.0]),
        (INTERIOR, [2.0, 1.0, -0.5, 0.3]),
        (BOUNDARY, [0.3, 1.0, -0.5, 0.3]),
        (BOUNDARY, [-0.7, 1.0, -0.5]),
        (VERTEX, [-2.0, 1.0, -0.5, 0.3]),
    ],
)
def test_second_order_rows_are_the_derivative_of_the_projection(case: int, block: list[float], scale: float) -> None:
    w, d = scale * np.array(block), len(block)
    face, u = soc_face(w)
    assert face.case == case
    np.testing.assert_allclose(face.s - face.v, w, rtol=0, atol=1e-15 * scale)
    boundary = case >= BOUNDARY
    np.testing.assert_allclose(u, np.r_[0, w[1:]] / np.linalg.norm(w[1:]) if boundary else 0, atol=1e-15)
    np.testing.assert_array_equal(face.on, np.arange(d) == 0 if boundary and d == 2 else case != INTERIOR)
    rows = face.on == 1
    T, C = face.R[rows], -u[rows][:, None] if boundary and d > 2 else np.zeros((rows.sum(), 0))
    # T ds + delta t - C k = 0 and C't = 0, for ds = dw + tau T't
    gram = TAU * T @ T.T + np.diag(face.delta[rows])
    K = np.block([[gram, -C], [-C.T, np.zeros((C.shape[1], C.shape[1]))]])
    t = np.linalg.solve(K, np.vstack([-T, np.zeros((C.shape[1], d))]))[: len(T)]
    expected = central_differences(PROJECTIONS[soc], w, 1e-3 * scale)
    np.testing.assert_allclose(np.eye(d) + TAU * T.T @ t, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_block_that_is_not_finite_has_no_rows_and_raises_nothing(bad: float, place: int) -> None:
    w = np.array([0.3, -0.2, 1.0])
    w[place] = bad
    faces = [dense_face(cone, w, TAU, 0.4) for cone in (psd, exponential, power)]
    for face, interior in zip([*faces, soc_face(w)[0]], [2, INTERIOR, INTERIOR, INTERIOR], strict=True):
        assert face.case == interior
        assert face.margin == 0
        assert np.isnan(face.s).all()
        assert np.isnan(face.v).all()
        assert not face.on.any()
        assert not face.delta.any()
        assert np.isfinite(face.R).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_squares_of_second_order_blocks_stay_in_range(scale: float) -> None:
    face, u = soc_face(scale * np.array([1.0, 3.0, 4.0]))
    assert face.case == BOUNDARY
    np.testing.assert_allclose(u, [0, 0.6, 0.8], rtol=1e-15)
    np.testing.assert_allclose(face.s / scale, [3, 1.8, 2.4], rtol=1e-15)
    np.testing.assert_allclose(face.delta[1:], TAU * 1.5, rtol=1e-15)


@pytest.mark.parametrize("rho", [-300.0, -30.0, 30.0, 300.0])
def test_small_entries_of_an_exponential_pair_are_accurate(rho: float) -> None:
    """s is along (rho, 1, e^rho) and v along (-1, rho - 1, e^-rho), entry by entry, however small they are."""
    down, up = np.exp(-max(rho, 0.0)), np.exp(min(rho, 0.0))
    w = np.array([rho * down, down, up]) / abs(rho) - 0.7 * np.array([-up, (rho - 1) * up, down]) / abs(rho)
    face = dense_face(exponential, w)
    assert face.case == BOUNDARY
    # the root is known to eps |w| in absolute terms: compare the entries within s, and within v
    np.testing.assert_allclose(face.s[0], face.s[1] * (face.v[1] / face.v[0] * -1 + 1), rtol=1e-12)
    np.testing.assert_allclose(np.log(face.s[2] / face.s[1]), rho, rtol=1e-12)
    np.testing.assert_allclose(np.log(-face.v[2] / face.v[0]), -rho, rtol=1e-12)


def test_weights_are_bounded_by_the_ratio() -> None:
    assert weight(1.0, 4.0, 2.0) == 0.5
    assert weight(1.0, 0.0, 2.0) == 2.0 * MAX_RATIO
    assert weight(0.0, 0.0, 2.0) == 2.0 * MAX_RATIO
    assert weight(1e300, 1e-300, 2.0) == 2.0 * MAX_RATIO
    assert weight(0.0, 1.0, 2.0) == 0.0


@pytest.mark.parametrize("top", [3e-320, 1e-9, 0.5, 1.0, 7e8, 1e308])
def test_unit_scale_is_a_power_of_two(top: float) -> None:
    scale = unit_scale(np.array([0.0, -top]))
    assert np.frexp(scale)[0] == 0.5
    assert top / scale < 1 or top > 1e301
    assert top / scale >= 0.5 or top < 1e-301
    assert unit_scale(np.zeros(3)) == 1.0


def root(f: Callable[[float], tuple[float, float]], start: float, lower: float, upper: float) -> tuple[float, int]:
    """The loop of `root_step`'s docstring, and how many evaluations it took."""
    x, last, lo, hi = start, FIRST_STEP, -np.inf, np.inf
    for count in range(1, MAX_STEPS + 1):  # noqa: B007 - returned
        new, lo, hi = root_step(x, *f(x), last, lo, hi, lower, upper)
        if new == x:
            break
        last, x = new - x, new
    return x, count


@pytest.mark.parametrize("start", [-1e6, -3.0, 0.0, 2.0, 5e5])
@pytest.mark.parametrize("target", [-7e5, -1.0, 0.0, 0.3, 1e6])
def test_root_from_anywhere(start: float, target: float) -> None:
    x, count = root(lambda x: (np.arctan(x - target), 1 / (1 + (x - target) ** 2)), start, -1e17, 1e17)
    np.testing.assert_allclose(x, target, rtol=4e-16, atol=4e-16)
    assert count < 120


@pytest.mark.parametrize("start", [2.0, 3.0, 5.0])
def test_a_function_of_one_sign_has_its_root_at_the_limit(start: float) -> None:
    assert root(lambda x: (-1.0 - np.exp(-x), np.exp(-x)), start, 2.0, 5.0)[0] == 5.0
    assert root(lambda x: (np.exp(x), np.exp(x)), start, 2.0, 5.0)[0] == 2.0


def test_root_between_limits_that_were_both_evaluated() -> None:
    """On a step function every Newton step is useless: bisection must find the jump."""
    x, _ = root(lambda x: (np.sign(x - 2.7), 0.0), 2.0, 2.0, 3.0)
    np.testing.assert_allclose(x, 2.7, rtol=4e-16)


@pytest.mark.parametrize("size", [1e-100, 1.0, 1e100])
def test_dikin_radius_is_that_of_the_largest_eigenvalue(size: float) -> None:
    rng = np.random.default_rng(3)
    for rank in (1, 2, 3):
        B = rng.standard_normal((3, rank)) * 10.0 ** rng.uniform(-3, 3, rank)
        H = size * B @ B.T
        expected = 1 / np.sqrt(np.linalg.eigvalsh(H)[-1])
        found = dikin_radius(H[0, 0], H[0, 1], H[0, 2], H[1, 1], H[1, 2], H[2, 2])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert dikin_radius(size, 0.0, 0.0, size, 0.0, size) == pytest.approx(1 / np.sqrt(size), rel=1e-15)


TESTS = str(Path(__file__).parents[1])
SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from cones.faces import faces
from ffo.cones import PSD, Exponential, Power, SecondOrder
from ffo.kernels.cones import soc
rng, out = np.random.default_rng(0), {"compiled": hasattr(soc.face, "py_func")}
for cone in (SecondOrder(1), SecondOrder(2), SecondOrder(4), PSD(3), Exponential(), Power(0.3), Power(0.5)):
    w = rng.standard_normal((60, cone.dim)) * 10.0 ** rng.uniform(-8, 8, (60, 1))
    if cone.name != "psd":  # the rank of a singular matrix is decided by rounding
        w[:20] = rng.integers(-2, 3, (20, cone.dim))
    w[0], w[1] = np.nan, 1e300
    f = faces(cone, w, np.full(60, 0.3))
    out |= {f"{cone} {name}": getattr(f, name) for name in "case rows s y delta margin".split()}
np.savez(sys.argv[1], **out)
"""


def test_the_same_code_runs_without_the_compiler(tmp_path: Path) -> None:
    """NUMBA_DISABLE_JIT=1, warnings as errors: the same faces as compiled."""
    found = []
    for name, disabled in (("compiled.npz", "0"), ("python.npz", "1")):
        run = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / name), TESTS]
        done = subprocess.run(run, env=os.environ | {"NUMBA_DISABLE_JIT": disabled}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(np.load(tmp_path / name))
    compiled, python = found
    assert compiled["compiled"]
    assert not python["compiled"]
    assert len(compiled.files) == 1 + 7 * 6
    for name in compiled.files[1:]:
        scale = np.abs(compiled[name]).max(axis=tuple(range(1, compiled[name].ndim)), keepdims=True)
        np.testing.assert_array_equal(np.isnan(python[name]), np.isnan(compiled[name]))
        one, other = (
            np.where(python[name] == compiled[name], 0.0, each[name]) for each in found
        )  # both may be infinite
        difference = np.abs(one - other)
        assert not (difference > 1e-12 * scale).any(), name
