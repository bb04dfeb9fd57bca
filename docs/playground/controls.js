/* The controls: what they show of a state, and what they ask for. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  const byId = (id) => document.getElementById(id);
  const diagonal = (v) => v.flatMap((one, k) => v.map((_, j) => (j === k ? one : 0)));

  /** How a matrix can be told: "attractive", "repulsive", "real", "pair" or "matrix". */
  function kindOf(m, d) {
    const off = m.every((v, k) => k % (d + 1) === 0 || v === 0);
    if (off && m.every((v, k) => k % (d + 1) !== 0 || v === 1)) return "attractive";
    if (off && m.every((v, k) => k % (d + 1) !== 0 || v === -1)) return "repulsive";
    if (off) return "real";
    const pair = m[0] === m[d + 1] && m[1] === -m[d];
    if (pair && m.every((v, k) => v === 0 || k === 0 || k === 1 || k === d || k === d + 1 || k === 8)) return "pair";
    return "matrix";
  }

  /** The matrix of a kind that is nearest to one that was there. */
  function ofKind(kind, m, d) {
    const trace = Array.from({ length: d }, (_, k) => m[k * (d + 1)]);
    if (kind === "attractive") return root.identity(d);
    if (kind === "repulsive") return root.identity(d).map((v) => 0 - v);
    if (kind === "real") return diagonal(trace.every((v) => v === trace[0]) ? [trace[0], 0.5 * trace[0], 0.5 * trace[0]].slice(0, d) : trace);
    if (kind === "pair") return fromPair([trace[0], m[d] || 1, trace[2] || 0], d);
    return m;
  }
  const fromPair = ([a, b, c], d) => (d === 2 ? [a, -b, b, a] : [a, -b, 0, b, a, 0, 0, 0, c]);

  /** Connects the page with `ask(wanted)`, which is called with what a reader wants changed; returns `show(state)`. */
  root.controls = function (ask) {
    const sliders = [];
    for (const place of document.querySelectorAll("[data-slider]")) {
      const { slider: name, label, least, most, power, step } = place.dataset;
      const low = Number(least), high = Number(most), p = Number(power);
      const words = document.createElement("label"), range = document.createElement("input"), number = document.createElement("input");
      Object.assign(words, { htmlFor: name, textContent: label });
      Object.assign(range, { type: "range", min: 0, max: 1, step: "any", id: name });
      range.setAttribute("aria-label", label);
      Object.assign(number, { type: "number", step, id: name + "-number", min: root.NUMBERS[name][0], max: root.NUMBERS[name][1] });
      number.setAttribute("aria-label", label);
      // Fine steps near zero, which is in the middle where values have both signs.
      const toValue = (s) => (low < 0 ? high * Math.sign(s - 0.5) * Math.abs(2 * s - 1) ** p : low + (high - low) * s ** p);
      const toShare = (v) => (low < 0 ? 0.5 + 0.5 * Math.sign(v) * (Math.abs(v) / high) ** (1 / p) : ((v - low) / (high - low)) ** (1 / p));
      // Keys that come back to zero miss it by a rounding.
      const precise = (v) => (Math.abs(v) < 1e-9 ? 0 : Number(v.toPrecision(Math.abs(v) < 1 ? 2 : 3)));
      const rounded = step === "1" ? Math.round : precise;
      range.addEventListener("input", () => ask({ [name]: rounded(toValue(Number(range.value))) }));
      // A step of the arrow keys: a hundredth of the way, or one token.
      range.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        if (!way) return;
        event.preventDefault();
        const now = Number(number.value);
        ask({ [name]: step === "1" ? now + way : rounded(toValue(Math.max(0, Math.min(1, Number(range.value) + way / 100)))) });
      });
      number.addEventListener("change", () => ask({ [name]: number.value }));
      place.append(words, range, number);
      sliders.push((state) => {
        const value = state[name];
        range.value = toShare(Math.max(low, Math.min(high, value)));
        range.setAttribute("aria-valuetext", String(value));
        if (document.activeElement !== number || Number(number.value) !== value) number.value = value;
      });
    }
    for (const name of ["seed", "until", "radius"]) byId(name).addEventListener("change", (e) => ask({ [name]: e.target.value }));
    for (const name of ["attention", "position", "colour"]) byId(name).addEventListener("change", (e) => ask({ [name]: e.target.value }));
    for (const name of ["logarithmic", "trails"]) byId(name).addEventListener("change", (e) => ask({ [name]: e.target.checked }));
    for (const one of document.getElementsByName("d")) one.addEventListener("change", () => ask({ d: Number(one.value) }));
    for (const one of document.getElementsByName("causal")) one.addEventListener("change", () => ask({ causal: one.value === "1" }));
    byId("new-seed").addEventListener("click", () => ask({ seed: Number(byId("seed").value) + 1 }));
    byId("speed").addEventListener("input", (e) => ask({ speed: Number((10 ** Number(e.target.value)).toPrecision(2)) }));

    // What V was told by: entries that happen to be diagonal may be told as a matrix all the same.
    let told = null, shown = null;
    const kinds = (state) => {
      const kind = kindOf(state.value, state.d);
      return told && (told === "matrix" || told === kind || (told === "real" && kind !== "pair" && kind !== "matrix")) ? told : kind;
    };
    byId("value").addEventListener("change", (e) => {
      told = e.target.value;
      ask({ value: ofKind(told, shown.value, shown.d) });
    });
    let formTold = false;
    byId("form").addEventListener("change", (e) => {
      formTold = e.target.value === "matrix";
      ask({ form: formTold ? shown.form : root.identity(shown.d) });
    });

    /** Inputs for numbers, kept as long as they are the same ones. */
    function fields(place, names, values, columns, changed) {
      if (place.dataset.names !== names.join()) {
        place.dataset.names = names.join();
        place.replaceChildren(...names.map((name) => {
          const label = document.createElement("label"), input = document.createElement("input");
          Object.assign(input, { type: "number", step: "any" });
          label.append(name, input);
          return label;
        }));
      }
      place.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
      const inputs = [...place.querySelectorAll("input")];
      inputs.forEach((input, k) => {
        if (document.activeElement !== input) input.value = values[k];
        input.onchange = () => changed(inputs.map((one) => Number(one.value)));
      });
    }
    const cells = (d, letter) => Array.from({ length: d * d }, (_, k) => `${letter}${Math.floor(k / d) + 1}${(k % d) + 1}`);

    return function show(state) {
      shown = state;
      const { d } = state, kind = kinds(state), place = byId("value-matrix"), v = state.value;
      for (const slider of sliders) slider(state);
      for (const name of ["seed", "until", "radius"]) if (document.activeElement !== byId(name)) byId(name).value = state[name];
      for (const name of ["attention", "position", "colour"]) byId(name).value = state[name];
      for (const name of ["logarithmic", "trails"]) byId(name).checked = state[name];
      for (const one of document.getElementsByName("d")) one.checked = Number(one.value) === d;
      for (const one of document.getElementsByName("causal")) one.checked = (one.value === "1") === state.causal;
      for (const [name, position] of [["slope", "alibi"], ["frequency", "rotary"]])
        document.querySelector(`[data-slider=${name}]`).hidden = state.position !== position;
      for (const id of ["beta", "beta-number"]) byId(id).disabled = state.attention === "hardmax";
      byId("speed").value = Math.log10(state.speed);
      const pace = state.logarithmic ? `${root.short(state.speed)} e-fold/s` : `${root.short(state.speed)} /s`;
      byId("speed-says").textContent = pace;
      byId("speed").setAttribute("aria-valuetext", pace);
      byId("value").value = kind;
      const wanted = (value) => ask({ value });
      if (kind === "real") fields(place, ["λ₁", "λ₂", "λ₃"].slice(0, d), [0, 1, 2].map((k) => v[k * (d + 1)]), d, (all) => wanted(diagonal(all)));
      else if (kind === "pair") {
        const names = d === 2 ? ["real part", "imaginary"] : ["real part", "imaginary", "λ₃"];
        fields(place, names, [v[0], v[d], v[8]], d, (all) => wanted(fromPair(all, d)));
      } else if (kind === "matrix") fields(place, cells(d, "V"), v, d, wanted);
      else fields(place, [], [], 1, wanted);
      const plain = root.isIdentity(state.form, d) && !formTold;
      byId("form").value = plain ? "identity" : "matrix";
      if (plain) fields(byId("form-matrix"), [], [], 1, wanted);
      else fields(byId("form-matrix"), cells(d, "B"), state.form, d, (form) => ask({ form }));
    };
  };
  Object.assign(root.controls, { kindOf, ofKind });
})();
