/* The tokens of `clusterjax.Sphere().sample(jax.random.key(seed), n, d)` in float64: jax's threefry2x32 with
   `jax_threefry_partitionable`, number k of a draw being that of the counter k, so that more tokens leave the first ones
   as they are. Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); Wichura, algorithm AS 241
   (1988), PPND16, for the inverse of the normal distribution, which is jax's erf_inv to a few roundings. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  /** Two words of 32 bits, enciphered by a key of two. */
  function threefry(key, x0, x1) {
    const k0 = key[0] >>> 0, k1 = key[1] >>> 0, k2 = (k0 ^ k1 ^ 0x1bd11bda) >>> 0;
    // Integers of 32 bits throughout: noise takes thousands of these a frame.
    let a = (x0 + k0) | 0, b = (x1 + k1) | 0;
    for (let group = 0; group < 5; group++) {
      const odd = group % 2;
      a = (a + b) | 0;
      b = odd ? (b << 17) | (b >>> 15) : (b << 13) | (b >>> 19);
      b ^= a;
      a = (a + b) | 0;
      b = odd ? (b << 29) | (b >>> 3) : (b << 15) | (b >>> 17);
      b ^= a;
      a = (a + b) | 0;
      b = odd ? (b << 16) | (b >>> 16) : (b << 26) | (b >>> 6);
      b ^= a;
      a = (a + b) | 0;
      b = odd ? (b << 24) | (b >>> 8) : (b << 6) | (b >>> 26);
      b ^= a;
      const next = (group + 1) % 3;
      a = (a + (next === 0 ? k0 : next === 1 ? k1 : k2)) | 0;
      b = (b + (next === 0 ? k1 : next === 1 ? k2 : k0) + group + 1) | 0;
    }
    return [a >>> 0, b >>> 0];
  }

  /** `jax.random.key(seed)`, of a seed from 0 to 2^53 - 1. */
  const keyOf = (seed) => [Math.floor(seed / 2 ** 32) >>> 0, seed >>> 0];

  const A = [2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
    13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608];
  const B = [5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1];
  const C = [7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
    3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734];
  const D = [1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
    0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1];
  const E = [2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
    0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772];
  const F = [2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
    0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1];

  /** The ratio of two polynomials of degree 7, by Horner's scheme. */
  function ratio(above, below, r) {
    let over = above[0], under = below[0];
    for (let k = 1; k < 8; k++) {
      over = over * r + above[k];
      under = under * r + below[k];
    }
    return over / under;
  }

  /** sqrt(2) erf_inv(u), the normal number whose probability is (1 + u) / 2. */
  function normalOf(u) {
    const q = u / 2;
    if (Math.abs(q) <= 0.425) return q * ratio(A, B, 0.180625 - q * q);
    const r = Math.sqrt(-Math.log((1 - Math.abs(u)) / 2));
    return Math.sign(q) * (r <= 5 ? ratio(C, D, r - 1.6) : ratio(E, F, r - 5));
  }

  /** Number `k` of a draw of normal numbers by a key. */
  function normalAt(key, k) {
    const [high, low] = threefry(key, Math.floor(k / 2 ** 32) >>> 0, k >>> 0);
    // The upper 52 bits: a number of [0, 1), moved to [-1, 1), where -1 itself has no normal number.
    const share = ((high * 2 ** 20 + (low >>> 12)) / 2 ** 52) * 2 - 1;
    return normalOf(Math.max(share, -1 + 2 ** -53));
  }

  /** Uniform tokens on the sphere, n d numbers in a row. */
  function sample(seed, n, d) {
    const key = keyOf(seed), x = new Float64Array(n * d);
    for (let k = 0; k < n * d; k++) x[k] = normalAt(key, k);
    for (let i = 0; i < n; i++) {
      let square = 0;
      for (let c = 0; c < d; c++) square += x[i * d + c] ** 2;
      for (let c = 0; c < d; c++) x[i * d + c] /= Math.sqrt(square);
    }
    return x;
  }

  Object.assign(root, { threefry, keyOf, normalOf, normalAt, sample });
})();
