"""Which paper each experiment is of, for the gallery: its groups, in their order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper, or several, with the experiments on what it says.

    **Attributes:**

    - `key`: Of its group in the page: part of a link.
    - `title`: Above its figures.
    - `short`: What a table calls it.
    - `experiments`: Their names, in order.
    """

    key: str
    title: str
    short: str
    experiments: tuple[str, ...]


PAPERS = (
    Paper(
        "peat",
        "T. Peat, Clustering in Transformers: its figures, and the questions that it leaves open",
        "Clustering in Transformers",
        (
            "figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "figure7", "figure8", "albert-training",
            "sink-training", "perceptron-delay", "interacting-heads",
        ),
    ),
    Paper(
        "mathematical-perspective",
        "Geshkovski, Letrouit, Polyanskiy, Rigollet, A mathematical perspective on transformers (2312.10794), and the "
        "emergence of clusters (2305.05465)",
        "2312.10794, 2305.05465",
        (
            "phase-diagram", "emergence-polytope", "emergence-hyperplanes", "emergence-mixed", "boolean-attention",
            "gaussian-closure", "moebius", "albert-bridge", "albert-spectra", "atlas", "gradient-flow",
        ),
    ),
    Paper(
        "hardmax",
        "Alcalde, Fantuzzi, Zuazua, Clustering in pure-attention hardmax transformers and its role in sentiment "
        "analysis (2407.01602)",
        "Hardmax transformers",
        ("hardmax-polytope", "hardmax-open-problems", "sentiment-words", "sentiment-leaders", "sentiment-training"),
    ),
    Paper(
        "slides",
        "M. Wollowski, Transformers, part 2: memory in feed-forward layers, residual streams and LSTMs",
        "Transformers, part 2",
        ("language-training", "lstm", "facts", "word-senses", "sentiment-neuron"),
    ),
    Paper(
        "causal",
        "Causal attention: sinks (2309.17453), the first token and Renyi centres (2411.04990)",
        "2309.17453, 2411.04990",
        ("causal-network", "causal-bridge", "causal-phase-diagram", "renyi-centres", "repulsion", "any-query-key"),
    ),
    Paper(
        "depth",
        "Layer norm (2510.22026), rank collapse (2103.03404), long contexts (2510.05554, 2605.08505), many tokens "
        "(2410.23228) and the staircase of the energy (2410.06833)",
        "Norms, rank, length, many tokens, the staircase",
        ("norm-schemes", "rank-collapse", "long-context", "linear-phase", "staircase", "cluster-lifetimes"),
    ),
    Paper(
        "noise",
        "Attention with noise: phase transitions on the circle (2604.16288) and in any dimension (2606.05140)",
        "2604.16288, 2606.05140",
        ("noise-bifurcation", "kramers-escape"),
    ),
    Paper(
        "neural-collapse",
        "Papyan, Han, Donoho, Prevalence of neural collapse during the terminal phase of deep learning training "
        "(2008.08186)",
        "2008.08186",
        ("neural-collapse",),
    ),
    Paper(
        "training-escape",
        "Isobe, Inoue, Imaizumi, Training-induced escape from token clustering in a mean-field formulation of "
        "transformers (2605.07772)",
        "2605.07772",
        ("training-escape",),
    ),
    Paper(
        "design",
        "Design by gradient: inverse problems, tokens led to targets as by Geshkovski, Rigollet, Ruiz-Balet, "
        "Measure-to-measure interpolation using transformers (2411.04551), clusters that are held",
        "Design by gradient, 2411.04551",
        ("design-recover", "design-hold", "design-steer"),
    ),
)  # fmt: skip

OWN = Paper("own", "Not of this library: figures of your own", "your own", ())


def paper_of(name: str) -> Paper:
    """The paper of the experiment of this name; `OWN` of one that the package does not have."""
    return next((paper for paper in PAPERS if name in paper.experiments), OWN)
