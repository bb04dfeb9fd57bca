"""After how many hardmax layers is the state clustered, against n, d, alpha and the condition of A, and how often can
given tokens be made the leaders?

The clouds have normal tokens in float64. A cloud is clustered at the first layer after which every token stays within
1e-3 of its limit, in units of the norm of the longest token. A token that follows one leader from a distance of this
norm takes log(1000) / log(1 + alpha) layers, the column "one length". Each row has the median, the 95 % quantile and
the maximum over many clouds, the share of the clouds with a leader after layer 0, and the share of the clouds on which
every clause of the theorem holds.

The second part tests the choice of leaders, for sets drawn at random from the tokens that lead for some A. The table
has the share of the sets for which `choose_leaders` finds an A, and the share that it proves impossible for A of
condition up to 1000. In the plane, for a third of the sets, the table also has the share that a grid of 4,608 choices
of A and alpha finds, and the share of these that `choose_leaders` finds.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _harness import options, report, say

from clusterjax.hardmax import HardmaxLayer, choose_leaders
from clusterjax.hardmax._certificate import make_certificate
from clusterjax.hardmax._choose_leaders import startable
from clusterjax.hardmax._limit import run_to_fixed_point, settled_tolerance


jax.config.update("jax_enable_x64", True)

NEAR = 1e-3
COLUMNS = ["varied", "n", "d", "alpha", "cond(A)", "clouds", "layers, median", "layers, 95 %", "layers, most",
           "one length", "leaders", "late leader %", "theorem held %"]  # fmt: skip
CONTROL = ["n", "d", "wanted", "exactly", "sets", "found %", "proved impossible %", "on a grid %", "found of those %"]
ALPHAS = (1.0, 4.0, 16.0, 0.25)


def form_of(rng, d, condition):
    """A random definite A with eigenvalues from 1/condition to 1, both attained if there are two."""
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    shares = np.concatenate([[0.0, 1.0], rng.uniform(size=d)])[:d]
    A = (axes * condition**-shares) @ axes.T
    return (A + A.T) / 2


def clustered_at(xs, limits, scale):
    """The first layer after which all tokens stay near their limits."""
    far = np.linalg.norm(xs - limits, axis=-1).max(axis=1) > NEAR * scale
    return int(np.flatnonzero(far).max(initial=-1)) + 1


def row(varied, n, d, alpha, condition, clouds, seed=0):
    rng = np.random.default_rng(seed)
    z0 = rng.normal(size=(clouds, n, d))
    forms = np.stack([form_of(rng, d, condition) for _ in range(clouds)])
    depth = int(60 + 60 / np.log1p(alpha))

    def run(z, A):
        layer = HardmaxLayer(alpha, A)
        step = lambda x, k: (layer(k, x), x)
        return run_to_fixed_point(z, layer, jnp.asarray(5000), settled_tolerance(z.dtype)), jax.lax.scan(
            step, z, jnp.arange(depth)
        )[1]

    ends, xs = jax.tree.map(np.asarray, eqx.filter_jit(jax.vmap(run))(jnp.asarray(z0), jnp.asarray(forms)))
    layers, leaders, late, held = [], [], [], []
    for b in range(clouds):
        found = make_certificate(jax.tree.map(lambda leaf, b=b: leaf[b], ends), z0[b], np.ones(n, bool), forms[b])
        limits = found.limit.points[found.limit.goes_to]
        layers.append(clustered_at(xs[b], limits, np.linalg.norm(z0[b], axis=1).max()))
        leaders.append(len(found.limit.leaders.indices))
        late.append(found.limit.leaders.first.max() > 0)
        held.append(found.held)
    say(f"{varied}: n = {n}, d = {d}, alpha = {alpha}, condition {condition:g}")
    return {
        "varied": varied, "n": n, "d": d, "alpha": alpha, "cond(A)": condition, "clouds": clouds,
        "layers, median": float(np.median(layers)), "layers, 95 %": float(np.quantile(layers, 0.95)),
        "layers, most": int(max(layers)), "one length": float(np.log(1 / NEAR) / np.log1p(alpha)),
        "leaders": float(np.mean(leaders)), "late leader %": 100 * float(np.mean(late)),
        "theorem held %": 100 * float(np.mean(held)),
    }  # fmt: skip


def sets_on_a_grid(z0):
    """All sets of leaders of one planar cloud over a grid of A, of condition up to 1000, and alpha."""
    angles, ratios = np.meshgrid(np.linspace(0, np.pi, 48, endpoint=False), np.geomspace(1, 1e3, 24))
    axes = np.stack([np.cos(angles.ravel()), np.sin(angles.ravel())], axis=1)
    low = 1 / ratios.ravel()[:, None, None]
    forms = low * np.eye(2) + (1 - low) * axes[:, :, None] * axes[:, None, :]

    def run(A, alpha):
        return run_to_fixed_point(z0, HardmaxLayer(alpha, A), jnp.asarray(300), jnp.asarray(1e-6)).leaders.first >= 0

    masks = jax.vmap(lambda A: jax.vmap(lambda alpha: run(A, alpha))(jnp.asarray(ALPHAS)))(jnp.asarray(forms))
    return masks.reshape(-1, z0.shape[0])


def control(n, d, size, exactly, sets, grids):
    rng = np.random.default_rng(n + 10 * d + 100 * size)
    found = proved = 0
    on_grid, both = [], []
    for number in range(sets):
        while True:
            z0 = rng.normal(size=(n, d))
            able = np.flatnonzero(startable(z0))
            if len(able) >= size:
                break
        wanted = np.sort(rng.choice(able, size, replace=False))
        choice = choose_leaders(jnp.asarray(z0), wanted.tolist(), exactly=exactly, alphas=ALPHAS)
        found += choice.succeeded
        proved += choice.bound < 0
        if d == 2 and number < grids:
            masks = np.asarray(GRID(jnp.asarray(z0)))
            mask = np.isin(np.arange(n), wanted)
            there = bool((masks == mask).all(axis=1).any() if exactly else masks[:, mask].all(axis=1).any())
            on_grid.append(there)
            both.append(there and choice.succeeded)
    say(f"control: n = {n}, d = {d}, {size} wanted{', exactly' * exactly}: {found} of {sets}")
    return {
        "n": n, "d": d, "wanted": size, "exactly": "yes" if exactly else "no", "sets": sets,
        "found %": 100 * found / sets, "proved impossible %": 100 * proved / sets,
        "on a grid %": 100 * float(np.mean(on_grid)) if on_grid else None,
        "found of those %": 100 * sum(both) / sum(on_grid) if any(on_grid) else None,
    }  # fmt: skip


def span(shares):
    """The range of the shares, as text."""
    low, high = min(shares := list(shares)), max(shares)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"


GRID = eqx.filter_jit(sets_on_a_grid)


def main():
    chosen = options(__doc__, "hardmax_convergence.json")
    clouds = 10 if chosen.quick else 100
    base = {"n": 50, "d": 3, "alpha": 1.0, "condition": 10.0}
    grid = {"n": (5, 20, 50, 200), "d": (1, 2, 3, 8), "alpha": (0.1, 0.5, 1.0, 4.0),
            "condition": (1.0, 10.0, 1e3, 1e6)}  # fmt: skip
    rows = [row(name, **(base | {name: value}), clouds=clouds) for name, values in grid.items() for value in values]
    extra = [r["layers, most"] - r["one length"] for r in rows]
    median = {r["alpha"]: r["layers, median"] for r in rows if r["varied"] == "alpha"}
    others = [r["layers, median"] for r in rows if r["varied"] != "alpha"]
    findings = (
        f"The theorem held on {sum(r['clouds'] * r['theorem held %'] / 100 for r in rows):.0f} of "
        f"{sum(r['clouds'] for r in rows)} clouds.",
        f"alpha decides: no cloud took more than {max(extra):.0f} layers longer than log(1000) / log(1 + alpha). At "
        f"alpha = 1 the medians lie between {min(others):.0f} and {max(others):.0f}, whatever n, d and the condition.",
        f"Eight layers are enough for 1e-3 where alpha is large: the median is {median[4.0]:.0f} at alpha = 4, "
        f"{median[1.0]:.0f} at alpha = 1 and {median[0.1]:.0f} at alpha = 0.1.",
    )
    title = "Layers until hardmax tokens are clustered, to 1e-3"
    report(rows, chosen.out, title=title, columns=COLUMNS, findings=findings, quick=chosen.quick)

    sizes = ((8, 2), (16, 2), (16, 4)) if not chosen.quick else ((8, 2),)
    sets = 8 if chosen.quick else 30
    rows = [control(n, d, size, exactly, sets, sets // 3) for n, d in sizes for size in (1, 2, 4)
            for exactly in (False, True)]  # fmt: skip
    least = [r for r in rows if r["exactly"] == "no"]
    settled = min(r["found %"] + r["proved impossible %"] for r in least)
    on_grid = [r["found of those %"] for r in rows if r["found of those %"] is not None]
    exact = {size: [r["found %"] for r in rows if r["exactly"] == "yes" and r["wanted"] == size] for size in (1, 2, 4)}
    findings = (
        f"At least the wanted tokens: found for {span(r['found %'] for r in least)} of the sets; found or proved "
        f"impossible for {settled:.0f} % at least.",
        "Exactly the wanted tokens: found for "
        + ", ".join(f"{span(shares)} of the sets of {size}" for size, shares in exact.items())
        + ".",
        f"Of the sets that the grid finds, {span(on_grid)} are found.",
    )
    report(rows, chosen.out.with_name("hardmax_control.json"), title="Choosing leaders", columns=CONTROL,
           findings=findings, quick=chosen.quick)  # fmt: skip


if __name__ == "__main__":
    main()
