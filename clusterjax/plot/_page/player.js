/* Plays a run that is inside the page: tokens as 16-bit codes, a time slider over the saved times, straight lines between
   them (on the sphere great circles). The page works without a network, and so does this. */
(function () {
  "use strict";
  const root = window.clusterjax, byId = (id) => document.getElementById(id);
  const run = JSON.parse(byId("run").textContent);
  const { n, d, times } = run, last = times.length - 1, round = run.kind === "sphere";
  const NOTHING = -32768; // the code of a token that is not there
  const SEGMENTS = 3200; // of trails in a frame, at most

  const bytes = Uint8Array.from(atob(run.codes), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer), tokens = new Float64Array(times.length * n * d);
  for (let k = 0; k < tokens.length; k++) {
    const code = view.getInt16(2 * k, true);
    tokens[k] = code === NOTHING ? NaN : code / 32767;
  }

  /** The tokens at a position between the first saved time, 0, and the last. */
  function at(position, out) {
    const k = Math.min(last, Math.floor(position)), share = position - k;
    const from = k * n * d, to = Math.min(last, k + 1) * n * d;
    out = out || new Float64Array(n * d);
    for (let i = 0; i < n * d; i++) {
      out[i] = share > 0 ? (1 - share) * tokens[from + i] + share * tokens[to + i] : tokens[from + i];
    }
    if (round) {
      for (let i = 0; i < n; i++) {
        let square = 0;
        for (let c = 0; c < d; c++) square += out[i * d + c] ** 2;
        // The middle of two opposite points has no direction: the token stays.
        if (square < 1e-12) for (let c = 0; c < d; c++) out[i * d + c] = tokens[from + i * d + c];
        else for (let c = 0; c < d; c++) out[i * d + c] /= Math.sqrt(square);
      }
    }
    return out;
  }

  const scene = new root.Scene(byId("scene"), run.view);
  let position = 0, playing = false, speed = 1, drawn = null, before = null, waiting = false;
  const fps = run.fps, longest = Math.max(4, 0.08 * last);

  /** When it is: as `digits` say, and between two saved times between theirs. */
  function time(where) {
    const k = Math.min(last, Math.floor(where)), share = where - k;
    return share > 0 ? (1 - share) * times[k] + share * times[Math.min(last, k + 1)] : times[k];
  }
  const named = (where) => {
    const t = time(where);
    return `${run.symbol} = ${run.digits === null ? root.short(t) : t.toFixed(run.digits)}`;
  };
  const counted = (where) => {
    if (!run.clusters) return "";
    const many = run.clusters[Math.round(where)];
    return `${many} cluster${many === 1 ? "" : "s"}`;
  };

  function trailOf(where) {
    const parts = Math.min(24, Math.floor(SEGMENTS / n)), back = Math.min(longest, where), past = [];
    if (!byId("trail").checked || parts < 4 || back <= 0) return past;
    for (let k = parts; k > 0; k--) past.push(at(where - (back * k) / parts));
    return past;
  }

  function pathOf(where) {
    if (!run.path || !byId("trail").checked || run.highlight < 0) return null;
    const points = [], steps = Math.min(600, Math.max(2, Math.ceil(4 * where)));
    for (let k = 0; k <= steps; k++) {
      const x = at((where * k) / steps);
      for (let c = 0; c < d; c++) points.push(x[run.highlight * d + c]);
    }
    return points;
  }

  function draw() {
    waiting = false;
    // The plain colour is that of the page, which has one for the light and one for the dark.
    const plain = getComputedStyle(document.documentElement).getPropertyValue("--token").trim();
    scene.colours(run.palette || [plain]);
    drawn = at(position);
    scene.draw({
      x: drawn, n, colour: run.colour, highlight: run.highlight, trail: trailOf(position), path: pathOf(position),
      counts: run.counts, arrows: run.arrows,
    });
    byId("time").textContent = named(position);
    byId("clusters").textContent = counted(position);
    const slider = byId("slider");
    slider.value = position;
    slider.setAttribute("aria-valuetext", [named(position), counted(position)].filter(Boolean).join(", "));
  }

  function ask() {
    if (!waiting) requestAnimationFrame(step);
    waiting = true;
  }

  function step(now) {
    if (playing) {
      // A page that was hidden goes on where it was.
      if (before !== null) position += (Math.min(100, now - before) / 1000) * fps * speed;
      before = now;
      if (position >= last) {
        if (byId("again").checked && last > 0) position %= last;
        else {
          position = last;
          pause();
        }
      }
    }
    draw();
    if (playing) ask();
  }

  function seek(where) {
    position = Math.max(0, Math.min(last, where));
    ask();
  }

  function play() {
    if (position >= last) position = 0;
    playing = last > 0;
    before = null;
    byId("play").textContent = playing ? "Pause" : "Play";
    ask();
  }

  function pause() {
    playing = false;
    byId("play").textContent = "Play";
    byId("said").textContent = [named(position), counted(position)].filter(Boolean).join(", ");
    ask();
  }

  scene.onchange = ask;
  byId("play").addEventListener("click", () => (playing ? pause() : play()));
  byId("slider").addEventListener("input", (event) => {
    if (playing) pause();
    seek(Number(event.target.value));
  });
  byId("speed").addEventListener("change", (event) => (speed = Number(event.target.value)));
  byId("trail").checked = run.trail && n <= SEGMENTS / 4;
  byId("trail").addEventListener("change", ask);
  if (last === 0) document.querySelector(".bar").classList.add("still");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inside = event.target.closest("select, button, summary, input[type=checkbox]");
    // A space on a button presses it, and arrows in a menu choose.
    if (event.key === " " && !inside) playing ? pause() : play();
    else if (inside && event.target.matches("select")) return;
    else if (event.key === "ArrowLeft") (pause(), seek(Math.ceil(position) - 1));
    else if (event.key === "ArrowRight") (pause(), seek(Math.floor(position) + 1));
    else if (event.key === "Home") seek(0);
    else if (event.key === "End") seek(last);
    else return;
    event.preventDefault();
  });

  root.player = {
    run, scene, seek, play, pause, at, time,
    get position() { return position; },
    get playing() { return playing; },
    get tokens() { return drawn; },
  };
  draw();
})();
