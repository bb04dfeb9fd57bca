/* Attention on the circle and the sphere in double precision: the velocity of `AttentionField`, and its integration.

   Algorithm: Dormand and Prince's pair of order 5(4) with adaptive steps and a dense output of order 4 (Hairer, Norsett,
   Wanner, "Solving ordinary differential equations I", II.4 to II.6); with noise Heun's scheme with fixed steps, which
   converges to the solution in the sense of Stratonovich, as `simulate` does.
   Invariants: the velocity is evaluated at unit vectors, so that the sphere attracts for every V; exponents are shifted by
   their largest, so that nothing overflows; after each step tokens are unit vectors. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  const RTOL = 1e-9, ATOL = 1e-11;
  const LEAST = 1e-10; // of a step: hardmax jumps, and steps would shrink for ever before a jump
  const SHORT = 1e-6, MANY = 200; // after so many short steps in a row tokens slide: one step of 0.001 is taken as it is
  const TIES = 64 * Number.EPSILON; // of scores that count as equal, as in HardmaxAttention

  const unit = (x, n, d) => {
    for (let i = 0; i < n; i++) {
      let square = 0;
      for (let c = 0; c < d; c++) square += x[i * d + c] ** 2;
      const scale = 1 / Math.sqrt(square);
      for (let c = 0; c < d; c++) x[i * d + c] *= scale;
    }
    return x;
  };

  const isIdentity = (matrix, d) => matrix.every((v, k) => v === (k % (d + 1) === 0 ? 1 : 0));

  /** The score of no smaller exponent than that of any two unit vectors: 1 or -1 where B = I, with the sign of beta. The
      offset of unnormalised attention is beta times this score. */
  function topScore({ form, d, beta }) {
    const size = isIdentity(form, d) ? 1 : Math.sqrt(form.reduce((sum, v) => sum + v * v, 0));
    return beta < 0 ? -size : size;
  }

  /** dx/dt of a system: {n, d, attention, causal, beta, value, form, mass, position, slope, frequency}; matrices are d d
      numbers, row by row, beta is of any sign, the mass of the first token is not negative. The position "alibi" adds
      -slope |i - j| to the exponent of each pair, "rotary" turns the first two coordinates of queries and keys by the
      angle i frequency, as `ALiBi(slope)` and `Rotary([frequency])` do. */
  class Field {
    constructor(system) {
      const { n, d } = system;
      this.system = system;
      this.evaluations = 0;
      for (const name of ["X", "Y", "Z", "P", "Q", "R", "total", "mass", "attended", "score", "cosine", "sine"])
        this[name] = new Float64Array(n);
      this.mass.fill(1);
      this.mass[0] = system.mass;
      let sum = 0;
      for (let i = 0; i < n; i++) this.attended[i] = sum += this.mass[i];
      if (!system.causal) this.attended.fill(sum);
      // In three dimensions, the third of the circle being zero.
      this.value = this._padded(system.value);
      this.form = this._padded(system.form);
      // With B = I the kernel is symmetric, and no exponent exceeds |beta|, that of equal or of opposite tokens.
      this.symmetric = isIdentity(system.form, d) && system.attention !== "hardmax";
      this.top = topScore(system);
      this.slope = system.position === "alibi" ? system.slope : 0;
      // The keys: the tokens themselves, unless they are turned.
      const turned = system.position === "rotary";
      this.keys = turned ? [new Float64Array(n), new Float64Array(n), this.Z] : [this.X, this.Y, this.Z];
      for (let i = 0; i < n; i++) {
        const angle = turned ? i * system.frequency : 0;
        this.cosine[i] = Math.cos(angle);
        this.sine[i] = Math.sin(angle);
      }
    }

    _padded(matrix) {
      const { d } = this.system, all = new Float64Array(9);
      for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) all[3 * i + j] = matrix[d * i + j];
      return all;
    }

    /** The velocity at x, written to `out`. */
    velocity(x, out) {
      const { n, d, attention } = this.system, { X, Y, Z, P, Q, R, total, value: V } = this;
      this.evaluations++;
      for (let i = 0; i < n; i++) {
        const a = x[i * d], b = x[i * d + 1], c = d === 3 ? x[i * d + 2] : 0, scale = 1 / Math.sqrt(a * a + b * b + c * c);
        X[i] = a * scale;
        Y[i] = b * scale;
        Z[i] = c * scale;
      }
      const [K, L] = this.keys;
      if (K !== X) {
        for (let i = 0; i < n; i++) {
          K[i] = this.cosine[i] * X[i] - this.sine[i] * Y[i];
          L[i] = this.sine[i] * X[i] + this.cosine[i] * Y[i];
        }
      }
      P.fill(0);
      Q.fill(0);
      R.fill(0);
      total.fill(0);
      if (this.symmetric) this._symmetric();
      else if (attention === "hardmax") this._hardmax();
      else this._general();
      for (let i = 0; i < n; i++) {
        const weight = attention === "unnormalised" ? this.attended[i] : total[i], scale = weight > 0 ? 1 / weight : 0;
        const p = P[i] * scale, q = Q[i] * scale, r = R[i] * scale;
        const u = V[0] * p + V[1] * q + V[2] * r, v = V[3] * p + V[4] * q + V[5] * r, w = V[6] * p + V[7] * q + V[8] * r;
        const along = u * X[i] + v * Y[i] + w * Z[i];
        out[i * d] = u - along * X[i];
        out[i * d + 1] = v - along * Y[i];
        if (d === 3) out[i * d + 2] = w - along * Z[i];
      }
      return out;
    }

    /** Sums over j of m_j e^(beta (<k_i, k_j> - top) - slope |i - j|) x_j with the keys k; each exponential serves two
        tokens. */
    _symmetric() {
      const { n, beta, causal } = this.system, { X, Y, Z, P, Q, R, total, mass, top, slope, keys: [K, L, M] } = this;
      const itself = Math.exp(beta * (1 - top));
      for (let i = 0; i < n; i++) {
        const a = X[i], b = Y[i], c = Z[i], k = K[i], l = L[i], o = M[i], m = itself * mass[i];
        let p = m * a, q = m * b, r = m * c, t = m;
        for (let j = 0; j < i; j++) {
          const e = Math.exp(beta * (k * K[j] + l * L[j] + o * M[j] - top) - slope * (i - j)), w = e * mass[j];
          p += w * X[j];
          q += w * Y[j];
          r += w * Z[j];
          t += w;
          if (!causal) {
            const back = e * mass[i];
            P[j] += back * a;
            Q[j] += back * b;
            R[j] += back * c;
            total[j] += back;
          }
        }
        P[i] += p;
        Q[i] += q;
        R[i] += r;
        total[i] += t;
      }
    }

    /** The exponents of token i, scale <B^T x_i, x_j> - slope |i - j| with queries and keys turned, and the largest of
        those with a mass. */
    _exponents(i, last, scale) {
      const { X, Y, Z, keys: [K, L, M], form: B, score, mass, slope } = this, cosine = this.cosine[i], sine = this.sine[i];
      const p = B[0] * X[i] + B[3] * Y[i] + B[6] * Z[i], q = B[1] * X[i] + B[4] * Y[i] + B[7] * Z[i];
      const u = cosine * p - sine * q, v = sine * p + cosine * q, w = B[2] * X[i] + B[5] * Y[i] + B[8] * Z[i];
      let top = -Infinity;
      this.length = Math.sqrt(u * u + v * v + w * w);
      for (let j = 0; j < last; j++) {
        score[j] = scale * (u * K[j] + v * L[j] + w * M[j]) - slope * Math.abs(i - j);
        if (mass[j] > 0 && score[j] > top) top = score[j];
      }
      return top;
    }

    _general() {
      const { n, beta, causal, attention } = this.system, { score, mass } = this;
      for (let i = 0; i < n; i++) {
        const last = causal ? i + 1 : n;
        const top = this._exponents(i, last, beta);
        // Unnormalised weights are no ratio: what is taken from their exponents must be the same for all.
        const shift = attention === "unnormalised" ? beta * this.top : top;
        for (let j = 0; j < last; j++) if (mass[j] > 0) this._add(i, j, mass[j] * Math.exp(score[j] - shift));
      }
    }

    _hardmax() {
      const { n, causal } = this.system, { score, mass } = this;
      for (let i = 0; i < n; i++) {
        const last = causal ? i + 1 : n, top = this._exponents(i, last, 1);
        const least = top - TIES * Math.max(this.length, this.slope > 0 ? Math.abs(top) : 0);
        for (let j = 0; j < last; j++) if (mass[j] > 0 && score[j] >= least) this._add(i, j, mass[j]);
      }
    }

    _add(i, j, weight) {
      this.P[i] += weight * this.X[j];
      this.Q[i] += weight * this.Y[j];
      this.R[i] += weight * this.Z[j];
      this.total[i] += weight;
    }
  }

  // Dormand and Prince: the stages, what they weigh in the error, and in the dense output.
  const STAGES = [
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
  ];
  const ERROR = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
  const DENSE = [
    -12715105075 / 11282082432, 0, 87487479700 / 32700410799, -10690763975 / 1880347072, 701980252875 / 199316789632,
    -1453857185 / 822651844, 69997945 / 29380423,
  ];

  /** A run from `x0` at t = 0; `system` may have a temperature, and then `seed`. */
  class Run {
    constructor(system, x0) {
      const size = system.n * system.d, many = (k) => Array.from({ length: k }, () => new Float64Array(size));
      this.system = system;
      this.field = new Field(system);
      this.t = this.before = 0;
      this.steps = this.rejected = this.done = this.short = 0;
      this.forced = this.sliding = false;
      this.x = unit(Float64Array.from(x0), system.n, system.d);
      this.k = many(7);
      this.dense = many(5);
      this.dense[0].set(this.x);
      this.stage = new Float64Array(size);
      this.noisy = system.temperature > 0;
      if (this.noisy) {
        this.dt = noiseStep(system);
        // A key of its own, beside that of the tokens.
        this.key = root.threefry(root.keyOf(system.seed), 0, 1);
        this.drawn = 0;
        this.increment = new Float64Array(size);
      } else {
        this.field.velocity(this.x, this.k[0]);
        let speed = 0;
        for (const v of this.k[0]) speed = Math.max(speed, Math.abs(v));
        this.h = 0.01 / Math.max(1, speed);
        this.last = 1e-4;
      }
    }

    /** Integrate until `target` is behind, or `milliseconds` are over; whether it is behind. */
    advance(target, milliseconds = Infinity) {
      const end = performance.now() + milliseconds;
      while (this.t < target) {
        if (this.noisy) this._heun();
        else if (this.done < 6) this._evaluate();
        else this._finish();
        if (performance.now() > end) break;
      }
      return this.t >= target;
    }

    /** Work on the step after the last one for a while, in a frame that does not need it yet. */
    prepare(milliseconds) {
      const end = performance.now() + milliseconds;
      while (!this.noisy && this.done < 6 && performance.now() < end) this._evaluate();
    }

    /** The tokens at a time within the last step. */
    at(t, out) {
      const { n, d } = this.system, [a, b, c, e, f] = this.dense;
      out = out || new Float64Array(n * d);
      if (this.t === this.before) {
        out.set(this.x);
        return out;
      }
      const s = Math.max(0, Math.min(1, (t - this.before) / (this.t - this.before))), r = 1 - s;
      for (let i = 0; i < n * d; i++) out[i] = a[i] + s * (b[i] + r * (c[i] + s * (e[i] + r * f[i])));
      return unit(out, n, d);
    }

    /** One velocity of the step in hand: a step is dear where tokens are many, and can be made in several frames. */
    _evaluate() {
      const { x, k, stage, h } = this, row = STAGES[this.done], size = x.length;
      for (let i = 0; i < size; i++) {
        let sum = 0;
        for (let j = 0; j < row.length; j++) sum += row[j] * k[j][i];
        stage[i] = x[i] + h * sum;
      }
      this.field.velocity(stage, k[++this.done]);
    }

    /** All velocities of the step are there: take it, or try a shorter one. */
    _finish() {
      const { x, k, stage, h } = this, size = x.length;
      let square = 0;
      for (let i = 0; i < size; i++) {
        let error = 0;
        for (let j = 0; j < 7; j++) error += ERROR[j] * k[j][i];
        square += ((h * error) / (ATOL + RTOL * Math.max(Math.abs(x[i]), Math.abs(stage[i])))) ** 2;
      }
      const error = Math.max(Math.sqrt(square / size), 1e-10);
      // Proportional and integral (Hairer and Wanner II, IV.2).
      const factor = 0.9 * error ** -0.14 * (error <= 1 ? this.last ** 0.08 : 1);
      this.done = 0;
      if (error <= 1 || h <= LEAST || this.forced) {
        this._accept(h);
        this.last = Math.max(error, 1e-4);
        this.h = Math.max(LEAST, h * Math.min(5, Math.max(0.2, factor)));
        // Tokens that switch between leaders without end: a jump met at every step, however short.
        this.short = this.forced ? MANY - 3 : h < SHORT ? this.short + 1 : 0;
        this.forced = this.short > MANY;
        if (this.forced) {
          this.sliding = true;
          this.h = 1e-3;
        }
      } else {
        this.rejected++;
        this.h = Math.max(LEAST, h * Math.min(0.9, Math.max(0.1, factor)));
      }
    }

    _accept(h) {
      const { x, k, stage, dense } = this;
      for (let i = 0; i < x.length; i++) {
        const change = stage[i] - x[i], bend = h * k[0][i] - change;
        let fifth = 0;
        for (let j = 0; j < 7; j++) fifth += DENSE[j] * k[j][i];
        dense[0][i] = x[i];
        dense[1][i] = change;
        dense[2][i] = bend;
        dense[3][i] = change - h * k[6][i] - bend;
        dense[4][i] = h * fifth;
      }
      // The velocity does not change: it is that of the unit vectors.
      x.set(unit(stage, this.system.n, this.system.d));
      [k[0], k[6]] = [k[6], k[0]];
      this.before = this.t;
      this.t += h;
      this.steps++;
    }

    _heun() {
      const { x, k, stage, increment, dense, dt, system } = this, { n, d } = system;
      const size = Math.sqrt(2 * system.temperature * dt);
      for (let i = 0; i < increment.length; i++) increment[i] = size * root.normalAt(this.key, this.drawn++);
      this.field.velocity(x, k[0]);
      project(x, increment, k[1], n, d);
      for (let i = 0; i < x.length; i++) stage[i] = x[i] + dt * k[0][i] + k[1][i];
      this.field.velocity(stage, k[2]);
      project(stage, increment, k[3], n, d);
      for (const one of dense) one.fill(0);
      dense[0].set(x);
      for (let i = 0; i < x.length; i++) x[i] += (dt * (k[0][i] + k[2][i]) + k[1][i] + k[3][i]) / 2;
      unit(x, n, d);
      for (let i = 0; i < x.length; i++) dense[1][i] = x[i] - dense[0][i];
      this.before = this.t;
      this.t += dt;
      this.steps++;
    }
  }

  /** The parts of v that are tangent at x, which need not be of unit length. */
  function project(x, v, out, n, d) {
    for (let i = 0; i < n; i++) {
      let along = 0, square = 0;
      for (let c = 0; c < d; c++) {
        along += x[i * d + c] * v[i * d + c];
        square += x[i * d + c] ** 2;
      }
      for (let c = 0; c < d; c++) out[i * d + c] = v[i * d + c] - (along / square) * x[i * d + c];
    }
  }

  /** The step of a noisy run: 0.01, or less where attention is fast. */
  function noiseStep({ beta, value, d }) {
    let largest = 0;
    for (let i = 0; i < d; i++) {
      let sum = 0;
      for (let j = 0; j < d; j++) sum += Math.abs(value[i * d + j]);
      largest = Math.max(largest, sum);
    }
    const stable = 0.5 / ((1 + Math.abs(beta)) * Math.max(largest, 1e-9));
    return stable >= 0.01 ? 0.01 : Number(stable.toPrecision(1));
  }

  Object.assign(root, { Field, Run, noiseStep, isIdentity, topScore });
})();
