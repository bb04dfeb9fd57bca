"""The leading eigenvalue of V and the splitting by it, for matrices that are built from their eigenvalues."""

import numpy as np
import pytest
import scipy.linalg

from clusterjax._limits.hypotheses import split


def similar(rng, blocks, condition=10.0):
    """Returns the block diagonal matrix in a random basis, and the basis."""
    matrix = scipy.linalg.block_diag(*blocks)
    d = len(matrix)
    left, right = (np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(2))
    basis = left @ np.diag(condition ** -rng.uniform(0, 1, d)) @ right
    return basis @ matrix @ np.linalg.inv(basis), basis


def jordan(number, size):
    return number * np.eye(size) + np.diag(np.ones(size - 1), 1)


def turning(real, imaginary):
    return np.array([[real, -imaginary], [imaginary, real]])


@pytest.mark.parametrize("multiplicity", (1, 2, 3))
def test_a_paranormal_matrix_is_split_into_its_parts(multiplicity):
    """If V is lambda I on F and smaller in modulus on G (a turn, a Jordan block or a negative number), the coordinates,
    F, G and the gap are those of its basis."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        number = 10.0 ** rng.uniform(-3, 3)
        other = (turning(0.3, 0.5), jordan(-0.4, 2), np.diag([0.6, -0.7]), np.zeros((2, 2)))[seed % 4]
        value, basis = similar(rng, [number * np.eye(multiplicity), number * other])
        parts, dual = split(value), np.linalg.inv(basis)[:multiplicity]
        assert parts.is_paranormal and abs(parts.eigenvalue - number) < 1e-9 * number
        assert parts.frame.shape == (multiplicity + 2, multiplicity)
        # This product projects any vector onto F along G.
        np.testing.assert_allclose(parts.frame @ parts.dual, basis[:, :multiplicity] @ dual, rtol=0, atol=1e-10)
        np.testing.assert_allclose(parts.dual @ parts.rest, 0, atol=1e-10)
        np.testing.assert_allclose(parts.dual @ parts.frame, np.eye(multiplicity), atol=1e-10)
        radius = number * np.abs(np.linalg.eigvals(other)).max()
        assert radius - 1e-6 * number <= parts.radius <= radius + 1e-5 * number
        assert parts.rounding < 1e-9 and parts.off < 1e-9 * number


@pytest.mark.parametrize(("size", "condition"), ((2, 10.0), (3, 10.0), (4, 10.0), (5, 10.0), (4, 1e4)))
def test_a_jordan_block_is_never_taken_for_a_simple_or_multiple_eigenvalue(size, condition):
    """Rounding scatters the eigenvalues of a block by roots of the machine epsilon, and none of them is trusted."""
    for seed in range(60):
        rng = np.random.default_rng([size, seed])
        more = [np.eye(1)] if seed % 2 else [np.array([[0.2]])]
        value, _ = similar(rng, [jordan(1.0, size), *more], condition)
        parts = split(value)
        assert not parts.is_paranormal, (seed, parts)
    exact = split(jordan(1.0, size))
    assert not exact.is_paranormal and not np.isfinite(exact.error)


@pytest.mark.parametrize("gap", [1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6])
def test_eigenvalues_that_nearly_coincide_are_neither_one_nor_two(gap):
    """One eigenvalue is 1 and others are below it by the gap, in orthonormal and in other bases: they count as equal
    only to rounding, and as different only by more than rounding."""
    found = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        below = np.diag(1 - gap * rng.uniform(0.5, 1, 1 + seed % 3))
        value, _ = similar(rng, [np.eye(1), below, np.array([[0.3]])], 10.0 if seed % 2 else 1.0)
        parts = split(value)
        if parts.is_paranormal:
            found.add(parts.frame.shape[1] == 1)
    if gap >= 1e-12:
        assert False not in found, "they are taken for equal"
    if gap <= 1e-14:
        assert True not in found, "rounding is taken for a gap"
    if gap <= 1e-16:
        assert found == {False}
    if gap >= 1e-7:
        assert found == {True}


def test_what_turns_or_falls_has_no_leading_direction():
    rng = np.random.default_rng(0)
    for blocks in (
        [turning(1.0, 0.5), np.eye(1)],  # as fast as the eigenvalue 1, which is not alone
        [turning(1.0, 1e-4)],
        [np.diag([-1.0, -2.0])],
        [np.zeros((3, 3))],
        [turning(0.0, 1.0)],
    ):
        parts = split(similar(rng, blocks)[0] if len(blocks[0]) < 3 else blocks[0])
        assert not parts.is_real and not parts.is_paranormal and parts.frame.shape[1] == 0


@pytest.mark.parametrize(
    ("diagonal", "paranormal", "multiplicity"),
    (
        ([1.0, 0.999], True, 1),
        ([1.0, -0.999], True, 1),
        ([1.0, -1.0], False, 1),
        ([1.0, -5.0], False, 1),  # the fastest growth is real, but the largest modulus is that of -5
        ([1.0, 1.0], True, 2),
        ([1.0, 1.0, -1.0], False, 2),
        ([2.0], True, 1),
        ([1.0, 1.0 - 1e-7], True, 1),
        ([1.0, 1.0 - 1e-15], True, 2),  # equal to rounding
    ),
)
def test_the_modulus_of_the_others_decides(diagonal, paranormal, multiplicity):
    for turn in (np.eye(len(diagonal)), np.linalg.qr(np.random.default_rng(1).normal(size=(len(diagonal),) * 2))[0]):
        parts = split(turn @ np.diag(diagonal) @ turn.T)
        assert parts.is_real
        assert (parts.is_paranormal, parts.frame.shape[1]) == (paranormal, multiplicity)
