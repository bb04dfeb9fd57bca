"""Where on the phase diagram of the particle model are the heads of trained networks?

The diagram has the flow of attention with V = I and B = βI over time and β. `probe.place` puts a head at its effective
β and at the leading eigenvalue λ of its V, for unit vectors: a head with V = λI does in one layer what this flow does
in the time λ. Here each head acts alone in all layers of its network, so that its time is λ times their number, on as
many random tokens as a text has. The heads of a network differ from such particles: they act together, beside
feed-forward layers, their V and B are no multiples of the identity, and a causal network has a mask. The figure
therefore counts where the heads are, and does not predict the network.

What would refute each claim, as written before any number of the figure was seen:

- "More than half of the heads attract": half of the heads or fewer have a leading eigenvalue with a positive real part,
  or one network of random weights has as large a share of such heads.
- "The heads are sharper than those of random weights": the median of β over the heads does not exceed that of random
  weights by two standard errors, or, with few articles and networks, by as many as are as improbable.
- "Fewer than half of the heads gather half of the pairs": half of the heads or more lie where more than half of the
  pairs of particles are close.
- The identity fails where `probe.place` has another effective β or eigenvalue than whole matrices.

Shares of heads are counts over all heads of one network, and have no standard error: the independent unit would be a
training, and there is one of each network. The spread of random weights stands beside them.

Source: Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Section 6: the heads of
ALBERT; *A mathematical perspective on transformers* (2312.10794), Section 6: the diagrams.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import phase, probe
from ...probe.measures.survey import clustered_error
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.controls import COLOURS, LINES, NAMES, Starts, keys_of, starts_of
from ..shared.ensemble import mean_and_error
from ..shared.every_network import ABSENT, AtHand, in_each, measured_on, networks_at_hand
from ..shared.layout import layer_lines, panels, remove_legend
from ..shared.networks import each_text


SAME = 1e-4  # the relative error of a number of a head that float32 may cause
CHECKED = ((0, 0), (-1, -1))  # the layers and heads that whole matrices check
LATEST, SHARPEST, GRID = 100.0, 64.0, (65, 101)  # the largest time and beta of the diagram, and its numbers of both
CLOSE = 0.5  # the share of close pairs from which a head gathers tokens
SURELY = "by two standard errors, or, with few articles and networks, by as many as are as improbable"


@dataclass(frozen=True)
class Parameters:
    draws: int = parameter(3, "the number of networks of random weights", least=2, most=32, quick=2)
    d: int = parameter(128, "the dimension of the particles of the diagram", least=2, most=1024, quick=16)
    samples: int = parameter(16, "the number of starts of the diagram", least=2, most=2048, quick=4)


class Placed(NamedTuple):
    given: AtHand  # the network and its texts
    trained: probe.Place
    random: tuple[probe.Place, ...]
    close: np.ndarray  # the share of close pairs of the diagram at each head, (layers, heads)
    off: float  # the largest relative difference of a number of a head from that of whole matrices

    @property
    def layers(self) -> int:
        return len(self.trained.radius.mean)

    @property
    def on(self) -> Measured:
        return self.given.measured(layers=self.layers, seeds=len(self.random))

    @property
    def median(self) -> Starts:
        """The median of beta over the heads, in the trained network beside random weights."""
        ours, *drawn = (median_of(run)[:, None] for run in (self.trained, *self.random))
        return starts_of(ours, drawn, self.given.articles)


class Results(NamedTuple):
    p: Parameters
    networks: dict[str, Placed]  # by the keys of `NETWORKS`; without SmolLM2 if it is not installed
    diagram: Any  # the dataset of `phase.phase_diagram`

    @property
    def listed(self) -> str:
        return ", ".join(network.given.name for network in self.networks.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    networks = networks_at_hand(settings, say)
    n = max(network.tokens for network in networks.values())
    say(f"running {p.samples} systems of {n} particles for each beta of the diagram")
    diagram = phase.phase_diagram(
        np.linspace(0, SHARPEST, GRID[0]), np.linspace(0, LATEST, GRID[1]), n=n, d=p.d, samples=p.samples,
        seed=settings.seed, progress=False,
    )  # fmt: skip
    return Results(
        p, {key: placed(p, settings.seed, say, diagram, at_hand) for key, at_hand in networks.items()}, diagram
    )


def placed(p: Parameters, seed: int, say: Say, diagram: Any, network: AtHand) -> Placed:
    say(f"placing the heads of {network.name} and of {p.draws} networks of random weights")
    place = partial(probe.place, texts=network.texts, units=network.articles)
    trained, random = place(network.model), tuple(place(network.random(key)) for key in keys_of(seed, p.draws))
    close = close_at(diagram, len(trained.radius.mean) * trained.eigenvalue.mean, trained.beta.mean)
    return Placed(network, trained, random, close, places_off(network.model, trained))


def close_at(diagram: Any, times: np.ndarray, betas: np.ndarray) -> np.ndarray:
    """The share of close pairs of the diagram at each time and beta, interpolated. Before time 0, where no particles
    gather, it is that of the start; beyond the diagram it is that of the edge."""
    inside = {"t": np.clip(times, 0, LATEST).ravel(), "beta": np.clip(betas, 0, SHARPEST).ravel()}
    shares = diagram.close_pairs.interp({name: ("head", values) for name, values in inside.items()})
    return np.asarray(shares).reshape(times.shape)


def places_off(model: probe.Model, place: probe.Place) -> float:
    """The largest relative difference of beta and of the eigenvalue of the heads `CHECKED` for the first text from
    those of whole matrices, (d, d)."""
    maps, off = probe.head_matrices(model), 0.0
    for layer, head in CHECKED:
        block, d = maps.order[layer], maps.query.shape[2]
        query, key, value, output = (part[block, head] for part in maps[:4])
        r = each_text(place.radius)[0, layer]
        form, moves = maps.scale * query @ key.T, (value @ output).T
        if maps.norm is None:
            form = r**2 * form
        else:
            gain = np.diag(maps.norm[block])
            form, moves = d * gain @ form @ gain, np.sqrt(d) / r * (gain @ value @ output).T
        beta = np.linalg.norm((form + form.T) / 2) / np.sqrt(d)
        # Of the d eigenvalues at least d - k are zero for any head of size k, and are left out.
        spectrum = np.linalg.eigvals(moves)
        leading = spectrum[np.argsort(-np.abs(spectrum))[: value.shape[1]]].real.max()
        measured = each_text(place.beta)[0, layer, head], each_text(place.eigenvalue)[0, layer, head]
        off = max(off, *(abs(ours / whole - 1) for ours, whole in zip(measured, (beta, leading), strict=True)))
    return float(off)


def attracting(place: probe.Place) -> float:
    """The share of the heads whose leading eigenvalue has a positive real part."""
    return float(np.mean(place.eigenvalue.mean > 0))


def median_of(place: probe.Place) -> np.ndarray:
    """The median of beta over the heads for each text, (texts,)."""
    return np.median(each_text(place.beta), axis=(1, 2))


@claim(f"a relative difference of less than {SAME:g}", kind="identity")
def whole_matrices(m: Results) -> Found:
    """The effective beta and the leading eigenvalue of the first and of the last head of each trained network are those
    of its whole matrices."""
    off = max(network.off for network in m.networks.values())
    return Found(f"the largest relative difference, in {m.listed}, is {off:.1e}", off < SAME, off)


@in_each("the share is above one half, and above that of each network of random weights")
def attract(network: Placed) -> Found:
    """More than half of the heads of NETWORK have a leading eigenvalue of V with a positive real part, and more than in
    networks of random weights."""
    share, drawn = attracting(network.trained), [attracting(run) for run in network.random]
    rotate = float(np.mean(network.trained.rotation.mean > 0))
    listed = ", ".join(f"{100 * fraction:.0f}" for fraction in drawn)
    return Found(
        f"{100 * share:.0f} % of {network.close.size} heads, {listed} % with random weights {network.given.drawn}; "
        f"{100 * rotate:.0f} % have a complex pair",
        share > 0.5 and share > max(drawn), share,
    )  # fmt: skip


@in_each(f"the median over the heads exceeds that of random weights {SURELY}")
def sharper(network: Placed) -> Found:
    """The median of the effective beta over the heads of NETWORK is larger than with random weights."""
    median, own = network.median, clustered_error(median_of(network.trained), network.given.articles)
    low, high = np.quantile(network.trained.beta.mean, (0.1, 0.9))
    difference = median.beyond.difference[0], median.beyond.error[0]
    return Found(
        f"median of beta over the heads {plus_minus(own.mean, own.error, 3)}; a tenth of the heads is below {low:.2f}, "
        f"a tenth above {high:.2f}; random weights {network.given.drawn}, {median.words()}; difference "
        f"{plus_minus(*difference, 3)}",
        median.exceeds(), *difference,
    )  # fmt: skip


@in_each(f"fewer than half of the heads are where the share of close pairs is above {CLOSE:g}")
def gather(network: Placed) -> Found:
    """Fewer than half of the heads of NETWORK gather more than half of the pairs of particles, each alone in all of its
    layers."""
    share, late = float(np.mean(network.close > CLOSE)), network.layers * network.trained.eigenvalue.mean
    return Found(
        f"{100 * share:.0f} % of the heads; median of their times {np.median(late):.2f}, largest {late.max():.2f}, in "
        f"{network.layers} layers",
        share < 0.5, share,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    gathering = "; ".join(
        f"{network.given.name} {np.mean(network.close > CLOSE):.2f}" for network in m.networks.values()
    )
    return (
        f"{'' if 'smollm2' in m.networks else f'{ABSENT} '}Each head of a network on the phase diagram of particles "
        f"with V = I and B = beta I, with a column for each network: {m.listed}. First row: each head at its effective "
        "beta and at the leading eigenvalue of its V times the number of layers, the time for which it would act "
        f"alone; cells: the share of close pairs of {m.diagram.attrs['n']} particles in {m.p.d} dimensions. Heads left "
        "of time 0 repel tokens, and lighter points are earlier layers. Second row: the mean of beta over the heads of "
        "each layer. Third row: the leading eigenvalue of the sum of V over the heads of each layer. Random weights: "
        f"{m.p.draws} networks, drawn as before training, with errors over networks; other errors are over articles. "
        f"The share of heads that gather more than half of the pairs: {gathering}."
    )


def series(m: Results) -> dict:
    table = {"beta of the diagram": m.diagram.beta.values, "t of the diagram": m.diagram.t.values}
    for network in m.networks.values():
        for name in ("beta", "eigenvalue", "rotation"):
            table[f"{name}_by_layer_and_head, {network.given.name}"] = getattr(network.trained, name).mean
        table[f"close pairs_by_layer_and_head, {network.given.name}"] = network.close
    return table


def draw(m: Results) -> Figure:
    networks = tuple(m.networks.values())
    rows = _diagram, partial(_lines, "layer_beta", "mean of beta"), partial(_lines, "layer_eigenvalue", "eigenvalue")
    fills = [lambda ax, m, fill=fill, network=network: fill(network, ax, m) for fill in rows for network in networks]
    shown = panels(m, fills, columns=len(networks), height=6.4)
    for place, ax in enumerate(shown.get_axes()[: len(fills)]):
        row, column = divmod(place, len(networks))
        if row == 0:
            ax.set_title(networks[column].given.name.removeprefix("the "), fontsize=7)
        if column:
            ax.set_ylabel("")
        if row and (row, column) != (1, 0):
            remove_legend(ax)
    return shown


def _diagram(network: Placed, ax: Axes, m: Results) -> None:
    # `plot.place` draws one network with its colour bars, for which three columns have no room.
    grid, times = m.diagram.close_pairs.transpose("beta", "t"), network.layers * network.trained.eigenvalue.mean
    betas, layer = network.trained.beta.mean, np.broadcast_to(np.arange(network.layers)[:, None], times.shape)
    ax.pcolormesh(m.diagram.t, m.diagram.beta, grid, cmap="cividis", vmin=0, vmax=1, shading="nearest", rasterized=True)
    ax.scatter(times, betas, c=layer, cmap="RdPu", vmin=-0.5 * network.layers, s=9, edgecolors="white", linewidths=0.3)
    ax.axvline(0, color="0.6", lw=0.6, zorder=1)
    reach = np.ptp(times)
    ax.set(facecolor="0.85", xlim=(min(times.min(), 0) - 0.05 * reach, times.max() + 0.05 * reach))
    ax.set(ylim=(0, 1.05 * betas.max()), xlabel="layers × eigenvalue (time)", ylabel="effective beta")


def _lines(name: str, ylabel: str, network: Placed, ax: Axes, m: Results) -> None:
    random = mean_and_error(np.stack([getattr(run, name).mean for run in network.random]))
    runs = getattr(network.trained, name), random
    layer_lines(ax, ylabel, [(NAMES[k], run, COLOURS[k], LINES[k]) for k, run in zip((0, 2), runs, strict=True)])
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def on(m: Results) -> Measured:
    return measured_on(m.networks, m.listed, {"d": m.p.d, "seeds": m.p.draws})


FIGURE = figure(
    __name__,
    claims=(whole_matrices, *attract, *sharper, *gather),
    over=None,
    recorded=lambda m: {
        "networks": [network.on.words for network in m.networks.values()], "starts": on(m).size["texts"],
        "articles": [len(np.unique(network.given.articles)) for network in m.networks.values()],
        "random weights": [network.given.drawn for network in m.networks.values()],
        "solver": "the published Euler scheme for the diagram",
    },
)  # fmt: skip
