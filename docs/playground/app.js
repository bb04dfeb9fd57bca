/* The page: a run that is integrated and drawn within the time of a frame. What changes the run starts it again, so that
   what is seen is what the link and the program in Python say. */
(function () {
  "use strict";
  const root = window.clusterjax, byId = (id) => document.getElementById(id);
  const BUDGET = 7, SPARE = 3; // milliseconds of integration in a frame, and of work ahead
  const BINS = 40, MEASURED = 100; // milliseconds from one measurement to the next
  const LONG = 72, PARTS = 3200; // frames of a trail, and its parts in a frame, of all tokens, at most
  const LATE = 0.02, OFTEN = 0.03; // seconds of a frame that came late, and the share of these that is too much
  const OKABE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"];
  const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;

  let state = root.merged(root.FIRST, {}).state, run = null, x = null, start = null, given = null;
  let playing = false, before = null, waiting = false, history = [], past = [], measured = -Infinity, told = -Infinity;
  let numbers = { clusters: 0, energy: NaN, counts: new Float64Array(BINS) }, rate = 0, now = 0, frames = 0, slid = false;
  let detail = 1, late = 0; // of a frame, and the share of frames that came late

  const scene = new root.Scene(byId("scene"), { d: 3, kind: "sphere" });
  const show = root.controls(change);

  /** The system of a run, of a state. */
  const systemOf = (all) => Object.fromEntries(root.DYNAMICS.map((name) => [name, all[name]]));

  function restart() {
    start = given || root.sample(state.seed, state.n, state.d);
    run = new root.Run(systemOf(state), start);
    now = 0;
    slid = false;
    detail = 1;
    late = 0;
    x = run.at(0);
    history = [];
    past = [];
    measured = -Infinity;
    ask();
  }

  /** Ask for changes of the state; those of what is run start again, and end the example. */
  function change(wanted, { keep = false } = {}) {
    const { state: next, said } = root.merged(state, wanted);
    const anew = root.DYNAMICS.some((name) => String(next[name]) !== String(state[name]));
    const other = next.d !== state.d, ended = now >= state.until;
    if (anew && !keep) next.preset = "";
    state = next;
    byId("said").textContent = said.join(" ");
    if (other) scene.configure({ d: state.d, kind: "sphere" });
    if (anew || !run) {
      given = null;
      restart();
      // A run that had come to its end shows what the change does.
      if (ended && !still) play();
    }
    if (now < state.until && wanted.until !== undefined) byId("play").textContent = playing ? "Pause" : "Play";
    describe();
    ask();
  }

  /** The words of a state: its example, its link, its program. */
  function describe() {
    show(state);
    const preset = root.PRESETS.find((one) => one.id === state.preset);
    byId("preset").value = state.preset;
    byId("claim").textContent = preset ? preset.claim : "A run of your own: change what you like, and send its link.";
    byId("claim").classList.toggle("own", !preset);
    byId("found").textContent = preset ? preset.found : "";
    byId("snippet").textContent = root.snippet(state);
    const hash = root.link(state);
    byId("link").value = location.href.replace(/#.*$/, "") + hash;
    // Some frames of a page may not be told a new address.
    try {
      window.history.replaceState(null, "", hash);
    } catch (error) {
      byId("said").textContent = "The address of the page could not be changed; the link below it holds this run.";
    }
  }

  function load(id) {
    const next = root.ofPreset(id);
    if (!next) return;
    // How a reader likes it shown stays.
    state = Object.assign(next, { trails: state.trails, colour: state.colour });
    scene.configure({ d: state.d, kind: "sphere" });
    given = null;
    byId("said").textContent = "";
    restart();
    describe();
  }

  function neighbour(step) {
    const ids = root.PRESETS.map((one) => one.id), k = ids.indexOf(state.preset);
    load(ids[(k + step + ids.length) % ids.length]);
    play();
  }

  function palette() {
    if (state.colour === "order") return VIRIDIS;
    if (state.colour === "clusters") return OKABE;
    return [getComputedStyle(document.documentElement).getPropertyValue("--token").trim()];
  }

  function colours() {
    const { n, d } = state;
    if (state.colour === "order") return Array.from({ length: n }, (_, i) => Math.floor((i * VIRIDIS.length) / n));
    if (state.colour !== "clusters") return null;
    const found = root.labels(x, n, d, state.radius);
    // By the first member: a cluster keeps its colour as others come to it.
    return Array.from(found, (label) => label % OKABE.length);
  }

  function measure(t) {
    const { n, d, radius } = state;
    numbers = {
      clusters: root.countClusters(x, n, d, radius),
      energy: state.attention === "hardmax" || state.beta === 0 ? NaN : root.logEnergy(x, state),
      counts: root.cosineCounts(x, n, d, BINS),
    };
    // The energy has the sign of beta: a line that climbs is an energy that grows.
    history.push({ t, clusters: numbers.clusters, energy: Math.sign(state.beta) * numbers.energy });
    // Every second one of a long history is as good.
    if (history.length > 1200) history = history.filter((_, k) => k % 2 === 0 || k === history.length - 1);
  }

  function write() {
    const { clusters, energy } = numbers;
    byId("clusters").textContent = clusters;
    byId("clusters-unit").textContent = clusters === 1 ? "cluster" : "clusters";
    const plain = root.isIdentity(state.form, state.d) && state.beta > 0, sign = state.beta < 0 ? "−" : "";
    // Of unit tokens with B = I and a positive beta the largest energy is e^beta / (2 beta).
    const share = Math.exp(energy - state.beta + Math.log(2 * state.beta));
    byId("energy").textContent = !Number.isFinite(energy) ? "–" : plain ? share.toFixed(4) : `${sign}exp(${energy.toFixed(3)})`;
    byId("energy-says").textContent = !Number.isFinite(energy) ? "has no number here" : plain ? "of its largest" : "";
    root.drawSeries(byId("chart"), history, state);
    root.drawHistogram(byId("histogram"), numbers.counts);
  }

  /** For those who listen: not more often than every five seconds. */
  function tell(stamp, always) {
    if (!always && stamp - told < 5000) return;
    told = stamp;
    byId("live").textContent = `t = ${root.short(now)}: ${numbers.clusters} ${numbers.clusters === 1 ? "cluster" : "clusters"}`;
  }

  function ask() {
    if (!waiting) requestAnimationFrame(step);
    waiting = true;
  }

  function step(stamp) {
    waiting = false;
    if (playing) {
      // A page that was hidden goes on where it was.
      const seconds = before === null ? 0 : Math.min(0.1, (stamp - before) / 1000);
      before = stamp;
      relieve(seconds);
      advance(seconds);
    }
    draw(stamp);
    if (playing) ask();
  }

  /** Where frames come late again and again, trails get fewer parts, which are most of a frame without a GPU, and the
      integration half of its time. */
  function relieve(seconds) {
    late = 0.98 * late + (seconds > LATE ? 0.02 : 0);
    if (late > OFTEN && detail > 1 / 8) {
      detail /= 2;
      late = 0;
    }
    return detail;
  }

  function advance(seconds) {
    const from = now, pace = state.logarithmic ? state.speed * Math.max(0.5, now) : state.speed;
    const target = Math.min(state.until, now + pace * seconds);
    run.advance(target, BUDGET * Math.max(0.5, detail));
    run.prepare(SPARE * Math.max(0.5, detail));
    if (run.sliding && !slid) {
      slid = true;
      byId("said").textContent = "Tokens switch between leaders without end here: shown in steps of 0.001, where simulate would stop.";
    }
    now = Math.min(target, run.t);
    const parts = Math.max(2, Math.floor(detail * Math.max(6, Math.min(24, PARTS / state.n))));
    if (frames++ % Math.round(LONG / parts) === 0) past.push(Float64Array.from(x));
    if (past.length > parts) past.splice(0, past.length - parts);
    x = run.at(now);
    if (seconds > 0) rate = 0.9 * rate + 0.1 * ((now - from) / seconds);
    if (now >= state.until) pause();
  }

  function draw(stamp) {
    byId("time").textContent = `t = ${now < 1000 ? now.toFixed(2) : Math.round(now)}`;
    const behind = playing && !state.logarithmic && rate > 0 && rate < 0.8 * state.speed && now > 0.2;
    byId("pace").textContent = behind ? `at ${root.short(Number(rate.toPrecision(2)))} /s: this is as fast as it goes` : "";
    if (stamp - measured >= MEASURED || !playing) {
      measured = stamp;
      measure(now);
      write();
    }
    if (playing) tell(stamp, false);
    scene.colours(palette());
    scene.draw({ x, n: state.n, colour: colours(), highlight: 0, trail: state.trails ? past : [], counts: 5 });
  }

  function play() {
    if (now >= state.until) restart();
    playing = true;
    before = null;
    rate = state.speed;
    byId("play").textContent = "Pause";
    ask();
  }

  function pause() {
    playing = false;
    byId("play").textContent = now >= state.until ? "Again" : "Play";
    tell(performance.now(), true);
    ask();
  }

  async function copy(text, button) {
    const name = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = name), 1500);
  }

  const own = document.createElement("option");
  Object.assign(own, { value: "", textContent: "your own" });
  byId("preset").append(own);
  for (const group of new Set(root.PRESETS.map((one) => one.group))) {
    const place = document.createElement("optgroup");
    place.label = group;
    for (const one of root.PRESETS.filter((preset) => preset.group === group)) {
      const option = document.createElement("option");
      Object.assign(option, { value: one.id, textContent: one.title });
      place.append(option);
    }
    byId("preset").append(place);
  }
  byId("preset").addEventListener("change", (event) => {
    if (!event.target.value) return change({ preset: "" });
    load(event.target.value);
    if (!still) play();
  });
  byId("previous").addEventListener("click", () => neighbour(-1));
  byId("next").addEventListener("click", () => neighbour(1));
  byId("play").addEventListener("click", () => (playing ? pause() : play()));
  byId("restart").addEventListener("click", () => {
    restart();
    play();
  });
  byId("copy-link").addEventListener("click", (event) => copy(byId("link").value, event.target));
  byId("copy-python").addEventListener("click", (event) => copy(byId("snippet").textContent, event.target));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest("input:not([type=range]):not([type=checkbox]):not([type=radio]), select, pre");
    const pressing = event.target.closest("button, summary, input[type=checkbox], input[type=radio]");
    if (typing || (pressing && event.key === " ")) return;
    const faster = (factor) => change({ speed: Math.min(1000, Math.max(0.01, Number((state.speed * factor).toPrecision(2)))) });
    const keys = {
      " ": () => (playing ? pause() : play()), r: () => byId("restart").click(), p: () => neighbour(-1), n: () => neighbour(1),
      t: () => change({ trails: !state.trails }), "[": () => faster(0.5), "]": () => faster(2),
    };
    const act = keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
  scene.onchange = ask;
  window.addEventListener("resize", ask);
  window.addEventListener("hashchange", () => {
    // What the page writes itself is no news.
    if (location.hash !== root.link(state)) open(location.hash);
  });

  function open(hash) {
    const { state: next, said } = root.fromLink(hash);
    state = next;
    scene.configure({ d: state.d, kind: "sphere" });
    given = null;
    restart();
    describe();
    byId("said").textContent = said.join(" ");
  }

  // For tests and for the console: the page without its clock.
  root.playground = {
    load, change, restart, play, pause, scene,
    get state() { return state; },
    get time() { return now; },
    get playing() { return playing; },
    get tokens() { return x; },
    get numbers() { return numbers; },
    get stats() { return { steps: run.steps, rejected: run.rejected, evaluations: run.field.evaluations, t: run.t }; },
    /** Start from these tokens, unless there are none. */
    from(tokens) {
      given = tokens || null;
      restart();
    },
    /** The tokens at t, without drawing what is between. */
    runTo(t) {
      run.advance(t);
      now = t;
      x = run.at(t);
      measure(t);
      ask();
      return x;
    },
    /** What is left of the detail of trails after a frame that took `seconds`. */
    relieve,
    get trail() { return past.length; },
    /** One frame of `seconds`, and what it took in milliseconds: to integrate, and to draw. */
    frame(seconds) {
      const times = [performance.now()];
      advance(seconds);
      times.push(performance.now());
      draw(performance.now());
      times.push(performance.now());
      return [times[1] - times[0], times[2] - times[1]];
    },
  };

  if (/[=]/.test(location.hash)) open(location.hash);
  else load("figure4");
  if (still) change({ trails: false });
  else play();
})();
