"""The command `sweep`."""

import argparse
import math
import os
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._base.log import log_line
from ._precision import double_precision
from ._types import LARGEST, integer, named, number, path


LAWS = ("identity", "square", "product", "wigner", "gaussian", "orthogonal")
STATISTICS = {"close-pairs": "ClosePairs", "gram-rank": "GramRank", "cluster-rank": "ClusterRank"}
DRAWN = {"system": "PerSystem", "beta": "PerBeta", "once": "Once"}
# The most values of beta, times, tokens, coordinates or samples; the most numbers in the state of one beta.
_MOST, _NUMBERS = 1_000_000, 1_000_000_000
PICTURES = (".png", ".svg", ".pdf")


def add_sweep(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "sweep", help="many runs over a grid, kept on the disk while they grow", description="Many runs over a grid.",
        epilog="example: clusterjax sweep phase-diagram --d 2 --store run.zarr --out diagram.png",
    )  # fmt: skip
    kinds = command.add_subparsers(dest="kind", required=True, metavar="KIND")
    command = kinds.add_parser(
        "phase-diagram",
        help="how clustered tokens are, over time and beta",
        description="The phase diagrams of 'A mathematical perspective on transformers' (2312.10794): for each beta "
        "and time the share of pairs of tokens with inner product above 0.999, over many random starts. A run with "
        "--store that was killed goes on where it was; the same call on a finished store only draws.",
        epilog="example: clusterjax sweep phase-diagram --betas 0.1:9:90 --times 200 --n 32 --d 2 --samples 2048 "
        "--store run.zarr --out diagram.png",
    )
    command.add_argument(
        "--betas", default="0.1:9:90", metavar="A:B:N", help="N values from A to B (default: 0.1:9:90)"
    )
    command.add_argument("--times", type=integer, default=200, metavar="N", help="save times, from 0 (default: 200)")
    command.add_argument("--until", type=number, metavar="T", help="the last of them (default: 30, unnormalised 1)")
    for name, (size, words) in {"n": (32, "tokens"), "d": (2, "coordinates of a token"),
                                "samples": (2048, "random starts")}.items():  # fmt: skip
        command.add_argument(f"--{name}", type=integer, metavar=name.upper()[0], help=f"{words} (default: {size})")
    command.add_argument("--starts", metavar="FILE", help="initial points (samples, n, d): .npy, .npz or .safetensors")
    command.add_argument("--variant", choices=("softmax", "unnormalised"), default="softmax", help="default: softmax")
    command.add_argument("--causal", action="store_true", help="a token attends to itself and to those before it only")
    command.add_argument(
        "--window", type=integer, metavar="W", help="and to fewer than W tokens away only, on either side or causally"
    )
    command.add_argument(
        "--query-key",
        choices=LAWS,
        default="identity",
        metavar="LAW",
        help="of Q^T K: identity, square (GG^T/sqrt d), product (G1 G2/sqrt d), wigner, gaussian, or orthogonal",
    )
    command.add_argument(
        "--value",
        choices=(*LAWS, "ascent", "descent"),
        default="identity",
        metavar="LAW",
        help="of V: the same laws, or ascent and descent (Q^T K times 1 and -1, scaled)",
    )
    command.add_argument(
        "--spectrum", metavar="LIST", help="the eigenvalues of V, in a random basis, such as 1,0.5 or 1+2j,1-2j"
    )
    command.add_argument(
        "--drawn", choices=tuple(DRAWN), default="system", help="a random matrix for each (default: system)"
    )
    command.add_argument(
        "--statistics",
        default="close-pairs",
        metavar="LIST",
        help="of close-pairs, gram-rank, cluster-rank; the first is drawn (default: close-pairs)",
    )
    command.add_argument("--dt", type=number, default=0.1, metavar="X", help="the published step (default: 0.1)")
    command.add_argument("--adaptive", action="store_true", help="integrate accurately, in place of that step")
    command.add_argument("--double", action="store_true", help="float64 in place of float32")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    command.add_argument("--store", type=named, metavar="DIR", help="where the numbers are kept, as zarr")
    command.add_argument("--fresh", action="store_true", help="compute anew what the store holds")
    command.add_argument(
        "--out",
        dest="picture",
        type=path,
        metavar="FILE",
        help="the picture: .png, .svg or .pdf (default: beside the store)",
    )
    command.set_defaults(run=_phase_diagram)


def _phase_diagram(arguments: argparse.Namespace) -> int:
    # Checks first: after `_use_all_cores` JAX is initialised, and errors would come late.
    betas, options = _grid(arguments.betas), _checked(arguments)
    _use_all_cores()
    import numpy as np

    from ..phase import phase_diagram

    until = arguments.until if arguments.until is not None else 1.0 if options["unnormalised"] else 30.0
    with double_precision() if arguments.double else nullcontext():
        diagram = phase_diagram(
            np.linspace(*betas), np.linspace(0, until, arguments.times), **options, store=arguments.store,
            resume=not arguments.fresh, dtype="float64" if arguments.double else "float32", seed=arguments.seed,
        )  # fmt: skip
    # A point whose statistics are not finite is marked as failed in the store.
    failed = int((diagram.status != 0).sum())
    if arguments.store is not None:
        log_line(f"{diagram.sizes['beta']} betas in {arguments.store}")
    if failed:
        reasons = sorted({str(reason) for reason in diagram.reason.values.ravel() if reason})
        log_line(f"{failed} of {diagram.sizes['beta']} betas failed: {'; '.join(reasons)}")
    picture = arguments.picture
    if picture is None and arguments.store is not None and find_spec("matplotlib") is not None:
        picture = Path(arguments.store).with_suffix(".png")
    if picture is not None:
        from ..plot import clustering_diagram, save

        first = arguments.statistics.split(",")[0].strip().replace("-", "_")
        window = "" if arguments.window is None else f" within {arguments.window}"
        kind = f"{'causal ' if arguments.causal else ''}{arguments.variant} attention{window}"
        title = f"{kind}, n = {diagram.attrs['n']}, d = {diagram.attrs['d']}"
        ax = clustering_diagram(diagram, statistic=first, title=title)
        for path in save(ax, picture.with_suffix(""), (picture.suffix[1:],)):
            log_line(f"drawn in {path}")
    return 0


def _grid(text: str) -> tuple[float, float, int]:
    """The ends and the number of values of A:B:N."""
    try:
        low, high, count = text.split(":")
        grid = float(low), float(high), int(count)
    except ValueError:
        # Refused below, with every other wrong grid.
        grid = (0.0, 0.0, 0)
    if not (0 <= grid[0] <= grid[1] <= LARGEST and 1 <= grid[2] <= _MOST and (grid[2] == 1) == (grid[0] == grid[1])):
        raise ValueError(
            f"--betas must be A:B:N, N values, at most {_MOST}, from A >= 0 up to B, which single precision holds, but "
            f"it is {text!r}; say 0.1:9:90."
        )
    return grid


def _checked(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `phase_diagram`, checked before JAX is initialised: `_use_all_cores` comes after this."""
    if arguments.store is None and arguments.picture is None:
        raise ValueError("--store or --out must be given, for the result would be lost; say --store run.zarr.")
    if arguments.times < 2:
        raise ValueError(f"--times must be at least 2, but it is {arguments.times}; choose more.")
    for name in ("until", "dt"):
        given = getattr(arguments, name)
        if given is not None and not given > 0:
            raise ValueError(f"--{name} must be positive, but it is {given}; choose another.")
    if arguments.times > _MOST:
        raise ValueError(f"--times must be at most {_MOST}, but it is {arguments.times}; choose fewer.")
    picture = arguments.picture
    if picture is not None and (picture.suffix not in PICTURES or not picture.parent.is_dir() or picture.is_dir()):
        raise ValueError(f"--out must be a .png, .svg or .pdf in a folder that is there, but it is {str(picture)!r}.")
    if picture is not None:
        from .. import plot  # noqa: F401  # says what to install, before anything is computed
    sizes = {name: getattr(arguments, name) for name in ("n", "d", "samples")}
    given = {name: size for name, size in sizes.items() if size is not None}
    if any(size > _MOST for size in given.values()) or math.prod(given.values()) > _NUMBERS:
        raise ValueError(
            f"--n, --d and --samples must be at most {_MOST}, and their product at most {_NUMBERS}, but they are "
            f"{given}; choose less, and sweep several seeds."
        )
    if arguments.window is not None and arguments.window < 1:
        raise ValueError(f"--window must be at least 1, the token itself, but it is {arguments.window}; choose more.")
    if arguments.spectrum is not None and arguments.value != "identity":
        raise ValueError(f"--spectrum is given in place of --value, but that is {arguments.value!r}; leave one out.")
    if arguments.starts is not None and given:
        raise ValueError(f"--{next(iter(given))} is what --starts says as well; leave it out.")
    from .. import phase
    from ..phase._diagram import read_named

    names = [name.strip() for name in arguments.statistics.split(",")]
    if unknown := [name for name in names if name not in STATISTICS]:
        raise ValueError(f"--statistics must be of {', '.join(STATISTICS)}, but there is {unknown[0]!r}; mend it.")
    if arguments.starts is not None:
        starts = read_named(arguments.starts, "--starts")
        given, dimension = {"starts": starts}, starts.shape[2]
    else:
        dimension = arguments.d if arguments.d is not None else 2
    drawn = getattr(phase, DRAWN[arguments.drawn])()
    return given | {
        "unnormalised": arguments.variant == "unnormalised",
        "mask": _mask(arguments),
        "query_key": _law(arguments.query_key, drawn),
        "value": _value(arguments, drawn, dimension),
        "statistics": tuple(getattr(phase, STATISTICS[name])() for name in names),
        "integrator": phase.Adaptive() if arguments.adaptive else phase.NormalisedEuler(arguments.dt),
    }


def _law(name: str, drawn: Any) -> Any:
    from .. import phase

    return phase.Identity() if name == "identity" else getattr(phase, name.capitalize())(drawn)


def _mask(arguments: argparse.Namespace) -> Any:
    from .. import CausalMask, FullMask, WindowMask

    if arguments.window is not None:
        return WindowMask(arguments.window, causal=arguments.causal)
    return CausalMask() if arguments.causal else FullMask()


def _spectrum(text: str, drawn: Any, d: int) -> Any:
    from ..phase import Spectrum

    try:
        numbers = [complex(part.strip()) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != d:
        raise ValueError(f"--spectrum must be {d} numbers, one for each coordinate, but it is {text!r}; mend it.")
    return Spectrum(numbers, drawn)


def _value(arguments: argparse.Namespace, drawn: Any, d: int) -> Any:
    from ..phase import LikeQueryKey

    if arguments.spectrum is not None:
        return _spectrum(arguments.spectrum, drawn, d)

    if arguments.value not in ("ascent", "descent"):
        return _law(arguments.value, drawn)
    # The scales of the published code: see `LikeQueryKey`.
    scale = {"identity": 1.0, "wigner": (d + 1) ** -0.5}.get(arguments.query_key, max(d, 1) ** -0.5)
    return LikeQueryKey(scale if arguments.value == "ascent" else -scale)


def _use_all_cores() -> None:
    """One JAX device for each core of a CPU, so that rows of the diagram run in parallel."""
    import jax

    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
        except RuntimeError:  # JAX is initialised already: its number of devices is fixed
            pass
