"""The networks and data of claims and measurements, and the sources that several figures share."""

from collections.abc import Mapping

from ..framework.verdict import ANY, UNSAID, Measured, Number, Source, Subject


PARTICLES = Subject("particles", "particles on the sphere")
UNIFORM = Subject("uniform", "independent uniform tokens")

# The ALBERTs of Lan et al. (1909.11942). `networks.subject_of` looks for these keys in the name of a loaded network.
ALBERT_BASE, ALBERT_LARGE, ALBERT_XL, ALBERT_XXL = (
    Subject(f"albert-{size}", f"ALBERT-{name}")
    for size, name in (("base", "base"), ("large", "large"), ("xlarge", "XL"), ("xxlarge", "XXL"))
)
ALBERT = (ALBERT_BASE, ALBERT_LARGE, ALBERT_XL, ALBERT_XXL)
C4 = Subject("c4", "C4")
IMDB = Subject("imdb", "the 50,000 IMDb reviews of Maas et al.")
MADE_UP = Subject("made-up", "made-up reviews with planted words")
HARDMAX_CLASSIFIER = Subject("hardmax-classifier", "the hardmax classifier: embedding, attention, decoder")
HARDMAX_LAYERS = Subject("hardmax-layers", "hardmax attention alone, not trained")
HARDMAX_THEOREM = Source("Alcalde, Fantuzzi and Zuazua, 2407.01602, of any tokens", HARDMAX_LAYERS, ANY)


def peat(
    place: str,
    *,
    networks: Subject | tuple[Subject, ...] = PARTICLES,
    data: Subject | tuple[Subject, ...] = UNIFORM,
    size: Mapping[str, Number] | None = None,
    least: Mapping[str, Number] | None = None,
) -> Source:
    """A figure or section of Peat, "Clustering in Transformers"; by default its particles start uniform on the
    sphere."""
    return Source(f"Peat, Clustering in Transformers, {place}", networks, data, size or {}, least or {})


# Section 3.1.1 and Figure 1 of Peat do not name the texts.
PEAT_FIGURE_1 = peat("Figure 1", networks=ALBERT_XL, data=UNSAID, least={"layers": 90})
# Section 3.1.2 and Figure 2 do not say which ALBERT they show; they name its heads 3, 5 and 12.
PEAT_FIGURE_2 = peat("Figure 2", networks=ALBERT, data=C4, least={"heads": 12})
# Section 4.2.4 does not say which ALBERT has the eigenvalues of Figures 7 and 8.
PEAT_FIGURE_7 = peat("Figure 7", networks=ALBERT, size={"tokens": 64, "d": 3, "beta": 1}, least={"t": 15})
PEAT_FIGURE_8 = peat("Figure 8", networks=ALBERT, size={"tokens": 64, "d": 3, "beta": 1, "t": 9})


def particles(**size: Number | tuple[Number, ...]) -> Measured:
    """The measurement of a run of uniform particles; `size` are the numbers of the run."""
    return Measured(PARTICLES, UNIFORM, size)
