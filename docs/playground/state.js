/* What is run and how it is shown: its bounds, its link, and the same run in Python. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  const identity = (d) => Array.from({ length: d * d }, (_, k) => (k % (d + 1) === 0 ? 1 : 0));

  const FIRST = {
    n: 64, d: 3, attention: "softmax", causal: true, beta: 9, value: null, form: null, mass: 1, position: "none", slope: 0.5,
    frequency: 0.1, temperature: 0, seed: 0, radius: 0.1, until: 15, speed: 1, logarithmic: false, trails: true, colour: "plain", preset: "",
  };

  // Numbers: from, to, whether whole; names in links. What changes the run itself comes before `radius`.
  const NUMBERS = {
    n: [2, 512, true], d: [2, 3, true], beta: [-100, 100], mass: [0, 1000], slope: [0, 10], frequency: [-10, 10],
    temperature: [0, 10], seed: [0, 2 ** 32 - 1, true], radius: [0.001, 2], until: [0.1, 1e6], speed: [0.01, 1000],
  };
  const WORDS = {
    attention: ["softmax", "unnormalised", "hardmax"], position: ["none", "alibi", "rotary"], colour: ["plain", "order", "clusters"],
  };
  const FLAGS = ["causal", "logarithmic", "trails"];
  const MATRICES = ["value", "form"];
  const MOST = 50; // of an entry of V and B
  const DYNAMICS = [
    "n", "d", "attention", "causal", "beta", "value", "form", "mass", "position", "slope", "frequency", "temperature", "seed",
  ];

  /** `wanted` on top of `state`, with all in bounds; and a sentence for each thing that was not. */
  function merged(state, wanted) {
    const next = Object.assign({}, state), said = [];
    for (const [name, given] of Object.entries(wanted)) {
      if (NUMBERS[name]) {
        const [low, high, whole] = NUMBERS[name];
        let number = typeof given === "string" && !given.trim() ? NaN : Number(given);
        if (!Number.isFinite(number)) {
          said.push(`${name} must be a number, but it is “${String(given).slice(0, 20)}”; it stays ${state[name]}.`);
          continue;
        }
        const kept = Math.min(high, Math.max(low, whole ? Math.round(number) : number));
        if (kept !== number) said.push(`${name} must be from ${low} to ${high}${whole ? ", whole" : ""}; ${kept} is taken.`);
        next[name] = kept;
      } else if (WORDS[name]) {
        if (WORDS[name].includes(given)) next[name] = given;
        else said.push(`${name} must be one of ${WORDS[name].join(", ")}; it stays ${state[name]}.`);
      } else if (FLAGS.includes(name)) next[name] = given === true || given === "1";
      else if (name === "preset") next.preset = (root.PRESETS || []).some((one) => one.id === given) ? given : "";
    }
    for (const name of MATRICES) {
      const given = name in wanted ? wanted[name] : state[name], d = next.d;
      const entries = given === null || given === undefined ? identity(d) : Array.from(given, Number);
      if (entries.length === d * d && entries.every((v) => Number.isFinite(v) && Math.abs(v) <= MOST)) next[name] = entries;
      else {
        // Of another dimension: what was there before is cut, or has ones added.
        next[name] = identity(d);
        const before = Math.round(Math.sqrt(entries.length));
        if (!(name in wanted) && before * before === entries.length)
          for (let i = 0; i < Math.min(d, before); i++)
            for (let j = 0; j < Math.min(d, before); j++) next[name][i * d + j] = entries[i * before + j];
        else
          said.push(`${name === "value" ? "V" : "B"} must be ${d * d} numbers of at most ${MOST} in size; it is the identity now.`);
      }
    }
    return { state: next, said };
  }

  /** The part of an address that carries a state. */
  function link(state) {
    const parts = new URLSearchParams();
    for (const name of Object.keys(FIRST)) {
      const value = state[name];
      if (name === "preset" && !value) continue;
      parts.set(name, Array.isArray(value) ? value.join(" ") : typeof value === "boolean" ? String(Number(value)) : value);
    }
    return "#" + parts.toString();
  }

  /** The state that an address carries, on top of the first one. */
  function fromLink(hash) {
    const wanted = {};
    for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
      if (MATRICES.includes(name)) wanted[name] = text.trim().split(/[ ,]+/);
      else if (name in FIRST) wanted[name] = text;
    }
    const base = ofPreset(wanted.preset) || FIRST, { state, said } = merged(base, wanted);
    // An example with another run is no example.
    if (DYNAMICS.some((name) => base.preset && String(state[name]) !== String(base[name]))) state.preset = "";
    return { state, said };
  }

  /** The state of an example; null if there is none of this name. */
  function ofPreset(id) {
    const preset = (root.PRESETS || []).find((one) => one.id === id);
    if (!preset) return null;
    const { until = 15, speed = 1, seed = 0 } = preset;
    return merged(FIRST, Object.assign({ until, speed, seed, preset: id }, preset.system)).state;
  }

  const float = (v) => (Number.isInteger(v) && Math.abs(v) < 1e15 ? `${v}.0` : String(v));
  const matrix = (entries, d) => {
    const rows = Array.from({ length: d }, (_, i) => `[${entries.slice(i * d, i * d + d).map(float).join(", ")}]`);
    return `jnp.array([${rows.join(", ")}])`;
  };

  /** The program that makes the same run. */
  function snippet(state) {
    const { n, d } = state, noisy = state.temperature > 0;
    const kind = { softmax: "Softmax", unnormalised: "Unnormalised", hardmax: "Hardmax" }[state.attention] + "Attention";
    const given = state.attention === "hardmax" ? [] : [float(state.beta)];
    const lines = [
      "import jax", "", 'jax.config.update("jax_enable_x64", True)', "", "import diffrax as dfx", "import jax.numpy as jnp",
      "", "import clusterjax as cjx", "", "",
      `x0 = cjx.Sphere().sample(jax.random.key(${state.seed}), n=${n}, d=${d})`,
    ];
    if (!root.isIdentity(state.form, d)) {
      lines.push(`form = ${matrix(state.form, d)}  # B = Q^T K`);
      given.push("query_key=form");
    }
    if (state.causal) given.push("mask=cjx.CausalMask()");
    if (state.position === "alibi") given.push(`position=cjx.ALiBi(${float(state.slope)})`);
    if (state.position === "rotary") given.push(`position=cjx.Rotary([${float(state.frequency)}])`);
    if (state.attention === "unnormalised") given.push(`offset=${float(state.beta * root.topScore(state))}`);
    lines.push(`attention = cjx.${kind}(${given.join(", ")})`);
    const field = ["attention"];
    if (!root.isIdentity(state.value, d)) {
      lines.push(`value = ${matrix(state.value, d)}  # V`);
      field.push("value");
    }
    if (state.mass !== 1) field.push(`masses=jnp.ones(${n}).at[0].set(${float(state.mass)})`);
    lines.push(`field = cjx.AttentionField(${field.join(", ")})`);
    lines.push(`ts = ${state.logarithmic ? `jnp.append(0.0, jnp.geomspace(${float(Math.min(0.1, state.until / 2))}, ${float(state.until)}, 150))`
      : `jnp.linspace(0.0, ${float(state.until)}, 151)`}`);
    if (noisy) {
      lines.push("# Noise of the same law as that of the page, but not the same noise: jax draws other numbers.");
      lines.push(`noise = dict(noise=${float(state.temperature)}, key=jax.random.key(1), dt0=${float(root.noiseStep(state))}, max_steps=10_000_000)`);
      lines.push("traj = cjx.simulate(field, x0, ts, **noise)");
    } else {
      lines.push("controller = dfx.PIDController(rtol=1e-9, atol=1e-11)");
      lines.push("traj = cjx.simulate(field, x0, ts, stepsize_controller=controller, max_steps=1_000_000)");
    }
    lines.push(`print(cjx.num_clusters(traj.xs[-1], radius=${float(state.radius)}))`);
    lines.push(`cjx.plot.player(traj, "run.html", highlight=0, radius=${float(state.radius)})`);
    return lines.join("\n") + "\n";
  }

  Object.assign(root, { FIRST, NUMBERS, DYNAMICS, merged, link, fromLink, ofPreset, snippet, identity });
})();
