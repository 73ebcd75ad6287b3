import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, Product, SecondOrder, Zero

CURVED = [(SecondOrder(4), 2), (PSD(2), 1), (Exponential(), 1), (Power(0.3), 1)]
BLOCKS = [(Zero(), 2), (Nonneg(), 3), *CURVED, (Nonneg(), 1)]


def test_product_projects_block_by_block() -> None:
    K = Product(BLOCKS)
    w = np.random.default_rng(0).standard_normal((5, K.dim))
    expected, start = [], 0
    for cone, count in BLOCKS:
        for _ in range(count):
            expected.append(cone.project(w[:, start : start + cone.dim]))
            start += cone.dim
    assert start == K.dim
    np.testing.assert_allclose(K.project(w), np.hstack(expected), atol=1e-14)
    np.testing.assert_allclose(K.project(w) - K.project_dual(-w), w, atol=1e-14)


def test_equal_cones_are_gathered() -> None:
    K = Product(BLOCKS)
    counts = {type(g.cone): len(g.index) for g in K.groups}
    assert counts[Nonneg] == 4
    assert sorted(np.concatenate([g.index.ravel() for g in K.groups])) == list(range(K.dim))
    assert Product(list(BLOCKS)) == K
    assert hash(K) == hash(Product(list(BLOCKS)))
