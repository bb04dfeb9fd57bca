"""The names of the figures, so that help and completion need not import the experiments, which takes seconds."""

FIGURES = (
    *(f"figure{k}" for k in range(1, 9)),
    "albert-spectra", "albert-bridge", "albert-training", "language-training", "causal-network", "causal-bridge",
    "sink-training", "lstm", "facts", "word-senses", "sentiment-neuron", "neural-collapse", "norm-schemes",
    "rank-collapse", "long-context", "perceptron-delay", "interacting-heads", "phase-diagram", "causal-phase-diagram",
    "linear-phase", "emergence-polytope", "emergence-hyperplanes", "emergence-mixed", "boolean-attention",
    "gaussian-closure", "moebius", "staircase", "cluster-lifetimes", "renyi-centres", "repulsion", "any-query-key",
    "atlas", "noise-bifurcation", "kramers-escape", "gradient-flow", "training-escape", "design-recover",
    "design-hold", "design-steer",
    "hardmax-polytope", "hardmax-open-problems", "sentiment-words", "sentiment-leaders", "sentiment-training",
)  # fmt: skip
