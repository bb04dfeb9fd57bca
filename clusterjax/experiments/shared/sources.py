"""Networks and data that claims are made of or measured on, and the papers that several figures share."""

from collections.abc import Mapping

from ..framework.verdict import UNSAID, Measured, Number, Source, Subject


PARTICLES = Subject("particles", "particles on the sphere")
UNIFORM = Subject("uniform", "independent uniform tokens")

# The ALBERTs that Lan et al. (1909.11942) published, by the beginning of their names on the hub.
# The keys are also looked for in the name of a loaded network, see `networks.subject_of`.
ALBERT_BASE, ALBERT_LARGE, ALBERT_XL, ALBERT_XXL = (
    Subject(f"albert-{size}", f"ALBERT-{name}")
    for size, name in (("base", "base"), ("large", "large"), ("xlarge", "XL"), ("xxlarge", "XXL"))
)
ALBERT = (ALBERT_BASE, ALBERT_LARGE, ALBERT_XL, ALBERT_XXL)
C4 = Subject("c4", "C4")
IMDB = Subject("imdb", "the 50,000 IMDb reviews of Maas et al.")
MADE_UP = Subject("made-up", "made-up reviews with planted words")
HARDMAX_CLASSIFIER = Subject("hardmax-classifier", "the hardmax classifier: embedding, attention, decoder")


def peat(
    place: str,
    *,
    networks: Subject | tuple[Subject, ...] = PARTICLES,
    data: Subject | tuple[Subject, ...] = UNIFORM,
    size: Mapping[str, Number] | None = None,
    least: Mapping[str, Number] | None = None,
) -> Source:
    """A place in Peat, "Clustering in Transformers", whose particles are 64, uniform on the sphere at first."""
    return Source(f"Peat, Clustering in Transformers, {place}", networks, data, size or {}, least or {})


# Peat, Section 3.1.1 and Figure 1: what the histograms are of; which texts, it does not say.
PEAT_FIGURE_1 = peat("Figure 1", networks=ALBERT_XL, data=UNSAID, least={"layers": 90})
# Section 3.1.2 and Figure 2: an ALBERT, which it does not say; its heads 3, 5 and 12 are named.
PEAT_FIGURE_2 = peat("Figure 2", networks=ALBERT, data=C4, least={"heads": 12})
# Section 4.2.4: the eigenvalues of an ALBERT, which it does not say.
PEAT_FIGURE_7 = peat("Figure 7", networks=ALBERT, size={"tokens": 64, "d": 3, "beta": 1}, least={"t": 15})
PEAT_FIGURE_8 = peat("Figure 8", networks=ALBERT, size={"tokens": 64, "d": 3, "beta": 1, "t": 9})


def particles(**size: Number | tuple[Number, ...]) -> Measured:
    """What an experiment of uniform particles states: the numbers that were run."""
    return Measured(PARTICLES, UNIFORM, size)
