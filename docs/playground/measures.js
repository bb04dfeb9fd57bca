/* Numbers of a cloud of unit tokens: `interaction_energy` and `cosine_histogram`; `num_clusters` is in scene.js. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});

  /** The logarithm of the energy sum_ij m_i m_j e^(beta <x_i, B x_j>) / (2 beta), masses adding up to one. */
  function logEnergy(x, { n, d, beta, form, mass }) {
    const whole = n - 1 + mass, image = new Float64Array(d), same = root.isIdentity(form, d);
    const of = (i) => (i === 0 ? mass : 1) / whole;
    let top = -Infinity, sum = 0;
    const add = (exponent, weight) => {
      if (weight <= 0) return;
      if (exponent > top) {
        sum *= Math.exp(top - exponent);
        top = exponent;
      }
      sum += weight * Math.exp(exponent - top);
    };
    for (let i = 0; i < n; i++) {
      for (let c = 0; c < d; c++) {
        image[c] = 0;
        for (let e = 0; e < d; e++) image[c] += form[e * d + c] * x[i * d + e];
      }
      // With B = I each pair is looked at once.
      for (let j = 0; j < (same ? i + 1 : n); j++) {
        let score = 0;
        for (let c = 0; c < d; c++) score += image[c] * x[j * d + c];
        add(beta * score, of(i) * of(j) * (same && j < i ? 2 : 1));
      }
    }
    return top + Math.log(sum) - Math.log(2 * Math.abs(beta));
  }

  /** How many pairs i < j have a cosine in each of `bins` equal bins of [-1, 1]; the last one holds its right edge. */
  function cosineCounts(x, n, d, bins) {
    const counts = new Float64Array(bins);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < i; j++) {
        let cosine = 0;
        for (let c = 0; c < d; c++) cosine += x[i * d + c] * x[j * d + c];
        const bin = Math.floor(((Math.max(-1, Math.min(1, cosine)) + 1) * bins) / 2);
        counts[Math.min(bins - 1, bin)]++;
      }
    }
    return counts;
  }

  Object.assign(root, { logEnergy, cosineCounts });
})();
