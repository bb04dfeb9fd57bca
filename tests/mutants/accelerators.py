"""Faults of what is done on accelerators alone, of changes against collapse, and of clusters that are dealt."""

from tests.mutants.mutant import Mutant


_ROWS = "clusterjax/_summation/blocked.py"
_DELAY = "clusterjax/design/_delay.py"
_HOLD = "clusterjax/design/_hold.py"
_ELSEWHERE = ("tests/summation/test_accelerator.py",)
_DELAYS = ("tests/design/test_delay.py",)

ACCELERATORS = (
    Mutant(
        "elementwise-forgets-the-mask",
        _ROWS,
        "                scores = _masked(scores, rows, block, mask, masked)\n",
        "",
        _ELSEWHERE,
    ),
    Mutant(
        "elementwise-rounds-no-shift-down",
        _ROWS,
        "rounded_down(jnp.max(scores, axis=axis), d) if d",
        "jnp.max(scores, axis=axis) * (1 + 4 * jnp.finfo(scores.dtype).eps) if d",
        _ELSEWHERE,
    ),
    Mutant(
        "elementwise-for-every-size",
        _ROWS,
        "return least <= columns <= most and rows <= most and",
        "return least <= columns and",
        _ELSEWHERE,
    ),
    Mutant(
        "elementwise-drops-the-last-value",
        _ROWS,
        "for k in range(block.width)], axis=1)",
        "for k in (*range(block.width - 1), 0)], axis=1)",
        _ELSEWHERE,
    ),
    Mutant(
        "blocks-on-a-gpu-as-on-a-cpu",
        "clusterjax/_summation/blocked.py",
        'usual = _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE',
        "usual = _ON_CPU",
        _ELSEWHERE,
    ),
    Mutant(
        "a-product-in-less-precision",
        "clusterjax/_dynamics/rodas5p.py",
        "rate = sign * matmul(u, matmul(lax.stop_gradient(linear.jacobian), u))",
        "rate = sign * matmul(u, lax.stop_gradient(linear.jacobian) @ u)",
        ("tests/house/test_precision.py",),
    ),
    Mutant(
        "a-neighbour-below-the-normal-numbers",
        "clusterjax/_dynamics/retract.py",
        "jnp.where(jnp.abs(near) < tiny, 0, near)",
        "near - 0 * tiny + side * tiny * (jnp.abs(near) < tiny)",
        ("tests/dynamics/test_constant_steps.py",),
    ),
    Mutant(
        "delay-goes-along-the-slope-down",
        _DELAY,
        "return -float(value), -norm * (",
        "return -float(value), norm * (",
        _DELAYS,
    ),
    Mutant(
        "delay-of-another-norm",
        _DELAY,
        "jnp.asarray(norm * direction / np.linalg.norm(direction), base.dtype)",
        "jnp.asarray(norm * direction / np.max(np.abs(direction)), base.dtype)",
        _DELAYS,
    ),
    Mutant(
        "delay-keeps-the-last-attempt",
        _DELAY,
        "    best = int(np.argmax(np.where(np.isfinite(by_attempt), by_attempt, -np.inf)))\n",
        "    best = attempts - 1\n",
        _DELAYS,
    ),
    Mutant(
        "delay-counts-no-derivatives",
        _DELAY,
        "        runs += count * (1 + len(base))\n",
        "        runs += 1\n",
        _DELAYS,
    ),
    Mutant(
        "delay-of-distances-from-the-origin",
        _DELAY,
        "jnp.square(x - jnp.mean(x, axis=0, keepdims=True))",
        "jnp.square(x)",
        _DELAYS,
    ),
    Mutant(
        "hold-parts-equal-tokens",
        _HOLD,
        "        if tree[len(x0) - clusters, 2] == 0:\n",
        "        if tree[len(x0) - clusters, 2] < 0:\n",
        ("tests/design/test_hold.py",),
    ),
)
