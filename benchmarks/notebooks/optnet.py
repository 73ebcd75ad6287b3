"""The model classes of OptNet, and the programs of qpth's own tests. Blocks are given as qpth takes them: bounds are
rows of G."""

from __future__ import annotations

import numpy as np

from benchmarks.problems import Array, Case, quadratic

PSD = {"Q": {"PSD": True}}
#: added to the diagonal of a learnt Q, as OptNet does
RIDGE = 1e-4


def _learnt(rng: np.random.Generator, n: int, rows: int) -> dict[str, Array]:
    """Q = LL' + RIDGE I with a triangular L, and rows G with random coefficients."""
    L = np.tril(rng.uniform(0, 1, (n, n)))
    return {"Q": L @ L.T + RIDGE * np.eye(n), "G": rng.uniform(-1, 1, (rows, n))}


def classifier(batch: int = 64, n: int = 10, rows: int = 200) -> Case:
    """The last layer of a classifier, with learnt Q, G and h = G z0 + s0, all shared; p comes from the network."""
    rng = np.random.default_rng(1)
    shared = _learnt(rng, n, rows)
    shared["h"] = shared["G"] @ (0.1 * rng.standard_normal(n)) + 1

    draw = lambda seed: {"p": 2 * np.maximum(np.random.default_rng(seed).standard_normal((batch, n)), 0)}  # noqa: E731
    return Case("OptNet classifier", quadratic, shared, draw, ("Q", "G", "h", "p"), PSD)


def convolutional(batch: int = 64, n: int = 50, rows: int = 200) -> Case:
    """The same with 50 variables, and h predicted by the network as well."""
    shared = _learnt(np.random.default_rng(2), n, rows)

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        h = 0.2 * rng.standard_normal((batch, n)) @ shared["G"].T + rng.uniform(0.1, 1, (batch, rows))
        return {"p": rng.standard_normal((batch, n)), "h": h}

    return Case("LeNet with OptNet", quadratic, shared, draw, ("Q", "G", "p", "h"), PSD)


def simplex(batch: int = 64, n: int = 10) -> Case:
    """Projection of scores onto the simplex instead of a softmax, with every entry at least 1e-5."""
    shared = {"Q": 0.5 * np.eye(n), "G": -np.eye(n), "h": np.full(n, -1e-5), "A": np.ones((1, n)), "b": np.ones(1)}
    draw = lambda seed: {"p": np.random.default_rng(seed).standard_normal((batch, n))}  # noqa: E731
    return Case("simplex projection", quadratic, shared, draw, ("p",), PSD)


def equalities(batch: int = 64, n: int = 50, rows: int = 10) -> Case:
    """minimize 0.05 |z|^2 + p'z, Az = 1, z >= 0, with a learnt A."""
    A = np.random.default_rng(3).uniform(0, 1, (rows, n))
    shared = {"Q": 0.1 * np.eye(n), "G": -np.eye(n), "h": np.zeros(n), "A": A, "b": np.ones(rows)}
    draw = lambda seed: {"p": -np.maximum(np.random.default_rng(seed).standard_normal((batch, n)), 0)}  # noqa: E731
    return Case("OptNet with equalities", quadratic, shared, draw, ("A", "p"), PSD)


def _signals(batch: int, n: int, weight: float, seed: int) -> Array:
    """(batch, 2n - 1) costs of denoising: minus a noisy signal with steps, and the weight of its differences."""
    rng = np.random.default_rng(seed)
    steps = np.repeat(rng.standard_normal((batch, 5)), n // 5, axis=1)
    noisy = steps + 0.3 * rng.standard_normal((batch, n))
    return np.concatenate([-noisy, np.full((batch, n - 1), weight)], axis=1)


def _differences(D: Array) -> Array:
    """Rows |Dx| <= t in the variables (x, t)."""
    bound = -np.eye(len(D))
    return np.block([[D, bound], [-D, bound]])


def denoising(batch: int = 32, n: int = 50) -> Case:
    """Denoising that starts from total variation, with n samples and n - 1 bounds; Q, G and h are learnt."""
    Q = np.diag(np.concatenate([np.ones(n), np.zeros(n - 1)])) + RIDGE * np.eye(2 * n - 1)
    h = 1e-2 * np.random.default_rng(4).standard_normal(2 * n - 2)
    shared = {"Q": Q, "G": _differences(-np.diff(np.eye(n), axis=0)), "h": h}
    draw = lambda seed: {"p": _signals(batch, n, 0.5, seed)}  # noqa: E731
    return Case("OptNet denoising", quadratic, shared, draw, ("Q", "G", "h", "p"), PSD)


def denoising_learnt_differences(batch: int = 32, n: int = 50) -> Case:
    """Denoising with a learnt matrix D in place of differences; only G depends on it."""
    D = 0.3 * np.random.default_rng(5).standard_normal((n - 1, n))
    Q = np.diag(np.concatenate([np.ones(n), np.zeros(n - 1)])) + RIDGE * np.eye(2 * n - 1)
    shared = {"Q": Q, "G": _differences(D), "h": np.zeros(2 * n - 2)}
    draw = lambda seed: {"p": _signals(batch, n, 0.3, seed)}  # noqa: E731
    return Case("OptNet denoising, learnt differences", quadratic, shared, draw, ("G", "p"), PSD)


def _puzzles(batch: int, seed: int) -> Array:
    """(batch, 64) minus the clues of 4 x 4 boards: eight of the sixteen cells, one-hot."""
    rng = np.random.default_rng(seed)
    solved = np.array([0, 1, 2, 3, 2, 3, 0, 1, 1, 0, 3, 2, 3, 2, 1, 0])
    p = np.zeros((batch, 16, 4))
    for puzzle in p:
        given = rng.permutation(16)[:8]
        puzzle[given, rng.permutation(4)[solved][given]] = -1.0
    return p.reshape(batch, 64)


def sudoku_equalities(batch: int = 50, rows: int = 40) -> Case:
    """Small Sudoku: a learnt A, random at first, with b = A z0 and z0 > 0."""
    rng = np.random.default_rng(6)
    A = rng.uniform(0, 1, (rows, 64))
    shared = {"Q": 0.1 * np.eye(64), "G": -np.eye(64), "h": np.zeros(64)}
    shared |= {"A": A, "b": A @ np.exp(0.1 * rng.standard_normal(64))}
    return Case("Sudoku, equalities", quadratic, shared, lambda seed: {"p": _puzzles(batch, seed)}, ("A", "b"), PSD)


def sudoku_inequalities(batch: int = 50, rows: int = 128) -> Case:
    """Small Sudoku with learnt inequalities G z <= G z0 + s0 next to z >= 0."""
    rng = np.random.default_rng(7)
    G = rng.uniform(-1, 1, (rows, 64))
    h = G @ (0.1 * rng.standard_normal(64)) + 1
    shared = {"Q": 0.1 * np.eye(64), "G": np.vstack([-np.eye(64), G]), "h": np.append(np.zeros(64), h)}
    return Case("Sudoku, inequalities", quadratic, shared, lambda seed: {"p": _puzzles(batch, seed)}, ("G", "h"), PSD)


def sudoku_latent(batch: int = 50, n: int = 50, rows: int = 100) -> Case:
    """A program on 50 latent variables between two linear layers; G and h are learnt."""
    rng = np.random.default_rng(8)
    G, into = rng.uniform(-1, 1, (rows, n)), rng.uniform(-1, 1, (64, n)) / 8
    shared = {"Q": 0.1 * np.eye(n), "G": G, "h": G @ (0.1 * rng.standard_normal(n)) + 1}
    draw = lambda seed: {"p": _puzzles(batch, seed) @ into}  # noqa: E731
    return Case("Sudoku, latent", quadratic, shared, draw, ("G", "h", "p"), PSD)


def random_program(batch: int = 1, n: int = 10, rows: int = 3, equal: int = 2) -> Case:
    """The random programs of qpth's tests: every block is dense and differentiated, one sample per call."""

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        L, G = rng.standard_normal((batch, n, n)), rng.standard_normal((batch, rows, n))
        A, inside = rng.standard_normal((batch, equal, n)), rng.standard_normal((batch, n, 1))
        return {
            "Q": L @ L.transpose(0, 2, 1) + RIDGE * np.eye(n),
            "p": 10 * rng.standard_normal((batch, n)),
            "G": G,
            "h": (G @ inside)[..., 0] + rng.uniform(0, 1, (batch, rows)),
            "A": A,
            "b": (A @ inside)[..., 0],
        }

    return Case("random program", quadratic, {}, draw, ("Q", "p", "G", "h", "A", "b"), PSD)


MODELS = (
    classifier,
    convolutional,
    simplex,
    equalities,
    denoising,
    denoising_learnt_differences,
    sudoku_equalities,
    sudoku_inequalities,
    sudoku_latent,
    random_program,
)
