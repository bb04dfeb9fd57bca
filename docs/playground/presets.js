/* What can be chosen: figures of the papers as runs, what each claims, and what was found. Figures are of T. Peat,
   "Clustering in Transformers", whose claims were measured over 256 starts (docs/figures.md); others name their paper. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  const diagonal = (...v) => v.flatMap((one, k) => v.map((_, j) => (j === k ? one : 0)));
  const pair = (a, b, c) => [a, -b, 0, b, a, 0, 0, 0, c];
  const ALBERT = [1, 0, 0, 0, 0.8445060117, -0.3994667478, 0, 0.3994667478, 0.8445060117];

  root.PRESETS = [
    {
      id: "figure3", group: "Clustering in Transformers", title: "Figure 3: a single cluster",
      claim: "V = I, β = 1, random Q and K: the tokens come to a single cluster.",
      found: "Reproduces: 94.1 ± 1.5 % of the starts are one cluster at t = 12. It forms at the first token, which stays.",
      system: { beta: 1, form: [0.37, -0.22, 0.15, 0.41, 0.28, -0.33, -0.19, 0.52, 0.24] },
    },
    {
      id: "figure4", group: "Clustering in Transformers", title: "Figure 4: metastable states",
      claim: "V = I, β = 9: distinct clusters persist.",
      found: "Reproduces, but they are metastable: 5.25 ± 0.09 clusters at t = 15 and 2.23 ± 0.04 at t = 1000. " +
        "Let time run logarithmically to see them merge.",
      system: { beta: 9 },
    },
    {
      id: "figure5", group: "Clustering in Transformers", title: "Figure 5: repulsion on the circle",
      claim: "V = -I on the circle: clusters at opposite sides.",
      found: "Not with V = -I: tokens spread, and the order of opposition (1 is two opposite clusters) is 0.054 ± 0.002.",
      system: { d: 2, beta: 1, value: diagonal(-1, -1) },
    },
    {
      id: "figure5-gap", group: "Clustering in Transformers", title: "Figure 5, with a gap",
      claim: "Ours: with a gap below the top eigenvalue, V = diag(-1, -10), two opposite clusters form.",
      found: "The order of opposition is 0.857 ± 0.001 at t = 5.",
      system: { d: 2, beta: 1, value: diagonal(-1, -10) }, speed: 0.5,
    },
    {
      id: "figure6", group: "Clustering in Transformers", title: "Figure 6: repulsion on the sphere",
      claim: "V = -I, β = 9: dense clusters that swirl.",
      found: "Neither: 62.6 ± 0.1 clusters of 64 tokens at t = 15; tokens spread as evenly as they can.",
      system: { beta: 9, value: diagonal(-1, -1, -1) },
    },
    {
      id: "figure6-gap", group: "Clustering in Transformers", title: "Figure 6, with a gap",
      claim: "Ours: with a gap below the top eigenvalue, V = diag(-1, -10, -10), dense groups form.",
      found: "8.0 ± 0.1 clusters at t = 15, along the axis of the top eigenvalue.",
      system: { beta: 9, value: diagonal(-1, -10, -10) }, speed: 0.5,
    },
    {
      id: "figure6-swirl", group: "Clustering in Transformers", title: "Figure 6, a complex pair",
      claim: "Ours: tokens swirl where the top eigenvalues are a complex pair, -1 ± i beside -4.",
      found: "Tokens come to the plane of the pair and turn in it together: net circulation 0.980 ± 0.000, of 1 at most.",
      system: { beta: 9, value: pair(-1, 1, -4) },
    },
    {
      id: "figure7", group: "Clustering in Transformers", title: "Figure 7: eigenvalues of an ALBERT",
      claim: "V with the three largest eigenvalues of a trained ALBERT: metastable, the first token apart from the others.",
      found: "Not the paper's network, and it would agree on neither: with time rescaled, 14.6 ± 0.7 clusters at t = 6 come " +
        "to 1.30 ± 0.07 at t = 15, the first token apart in 7.0 ± 1.6 % of the starts.",
      system: { beta: 1, value: ALBERT },
    },
    {
      id: "figure8", group: "Clustering in Transformers", title: "Figure 8: the path of the first token",
      claim: "The same V: the first token aligns with the leading eigenvector, and attracts the others.",
      found: "Not the paper's network; with time rescaled the alignment is 0.81 ± 0.02 at t = 9, exactly that of exp(Vt).",
      system: { beta: 1, value: ALBERT }, seed: 3, until: 9, speed: 0.6,
    },
    {
      id: "one-cluster", group: "A mathematical perspective on transformers", title: "Full attention: one cluster",
      claim: "V = I on the sphere, everyone attends to everyone: for almost every start all tokens come to one point " +
        "(2312.10794).",
      found: "1 cluster at t = 15 in this run.", expected: 1,
      system: { beta: 1, causal: false },
    },
    {
      id: "circle", group: "A mathematical perspective on transformers", title: "Full attention: metastable on the circle",
      claim: "At a large β tokens on the circle form several clusters first, and those merge after very long times " +
        "(2312.10794, 2410.06833).",
      found: "3 clusters at t = 15 in this run, where the sphere has one.", expected: 3,
      system: { d: 2, beta: 9, causal: false },
    },
    {
      id: "gradient", group: "A mathematical perspective on transformers", title: "Unnormalised: a gradient flow",
      claim: "Without the softmax's normaliser the flow climbs the interaction energy, which never falls (2312.10794).",
      found: "38 clusters at t = 15 in this run: tokens in crowds move, lonely ones hardly at all.", expected: 38,
      system: { beta: 4, causal: false, attention: "unnormalised" },
    },
    {
      id: "leader", group: "Causal attention", title: "The leader",
      claim: "Causal, V = I: the first token does not move, and everyone comes to it in the end, whatever Q and K " +
        "(2411.04990).",
      found: "A first token of mass 20 is reached sooner: the mean cosine to it is 0.61 at t = 15 in this run, and 0.18 " +
        "for a mass of 1.",
      system: { beta: 4, mass: 20 },
    },
    {
      id: "negative", group: "Negative β", title: "Negative β: opposite clusters",
      claim: "Ours: with V = -I and β = -9 each token flees mostly the tokens opposite to it, and opposite clusters form.",
      found: "4 clusters at t = 15 in this run, two opposite pairs; with β = 9 all 64 tokens stay apart.", expected: 4,
      system: { beta: -9, causal: false, value: diagonal(-1, -1, -1) },
    },
    {
      id: "alibi", group: "Positions", title: "ALiBi: nearby tokens weigh more",
      claim: "Ours: with log-weights -|i - j| / 2 (2108.12409) a causal token follows mostly the tokens just before it, and " +
        "clusters merge later.",
      found: "37 clusters at t = 15 in this run, where the same tokens without a position have 6.", expected: 37,
      system: { beta: 9, position: "alibi", slope: 0.5 },
    },
    {
      id: "rotary", group: "Positions", title: "Rotary: turned by place",
      claim: "Ours: with queries and keys that turn by 2π / 64 for each place (2104.09864) the token at place i comes to one " +
        "of two opposite angles, which turn with i, and not all tokens to one point.",
      found: "18 clusters at t = 15 in this run, still 18 at t = 1000; with β = 1 one cluster. Colours by order show the turn.",
      expected: 18,
      system: { d: 2, beta: 3, causal: false, position: "rotary", frequency: 0.09817477042468103 },
    },
    {
      id: "hardmax", group: "Hardmax", title: "Hardmax: flee the farthest",
      claim: "Ours: β = ∞ with B = V = -I: each token looks at the one before it that is farthest from it, and flees it.",
      found: "Two opposite clusters: the first token, which stays, is one of them.", expected: 2,
      system: { attention: "hardmax", form: diagonal(-1, -1, -1), value: diagonal(-1, -1, -1) },
    },
    {
      id: "frozen", group: "Hardmax", title: "Hardmax with B = I: nothing moves",
      claim: "Ours: of unit tokens each scores itself highest, so that at β = ∞ everyone follows itself.",
      found: "All 64 tokens stay where they are, 59 clusters at radius 0.1: where metastable states end as β grows.",
      expected: 59,
      system: { attention: "hardmax", causal: false },
    },
    {
      id: "noise", group: "Noise", title: "Attention against noise",
      claim: "Ours: Brownian motion of temperature T is added: little noise leaves a crowd that wanders, more of it dissolves " +
        "every crowd.",
      found: "At T = 0.05 the tokens stay together; push T to 0.5 and they do not.",
      system: { beta: 1, causal: false, temperature: 0.05 },
    },
  ];
})();
