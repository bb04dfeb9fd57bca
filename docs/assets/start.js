/* The run of the start page, on a canvas of the page: the run with which the playground opens. It starts by itself, rests
   at its end and repeats. For a reader who prefers less motion it is paused at a time at which clusters are seen. */
(function () {
  "use strict";
  const root = window.clusterjax, byId = (id) => document.getElementById(id);
  const END = 30, PACE = 1.5, STILL = 6; // the time at the end, the time per second, and the time of the still picture
  const REST = 4, TURN = 6, BUDGET = 7; // seconds, degrees per second, and milliseconds of integration in a frame
  const PARTS = 18, EVERY = 3; // of a trail, and the frames from one part to the next
  const state = root.merged(root.FIRST, {}).state, { n, d, radius } = state, start = root.sample(state.seed, n, d);
  const canvas = byId("start-scene"), button = byId("start-play"), scene = new root.Scene(canvas, { d, kind: "sphere" });
  let run, x, past, now, rested, frames = 0, playing = false, seen = true, before = null, waiting = false;

  function restart() {
    run = new root.Run(state, start);
    x = run.at(0);
    past = [];
    now = rested = 0;
  }

  function advance(seconds, budget) {
    const target = Math.min(END, now + PACE * seconds);
    run.advance(target, budget);
    now = Math.min(target, run.t);
    if (frames++ % EVERY === 0) past = past.slice(1 - PARTS).concat([x]);
    x = run.at(now);
    if (now >= END) rested += seconds;
    if (rested > REST) restart();
  }

  function draw() {
    const clusters = root.countClusters(x, n, d, radius);
    scene.colours([getComputedStyle(canvas).getPropertyValue("--token").trim()]);
    scene.draw({ x, n, colour: null, highlight: 0, trail: past, counts: 5 });
    byId("start-says").textContent = `t = ${now.toFixed(1)}: ${clusters} clusters of ${n} tokens`;
  }

  function ask() {
    if (!waiting) requestAnimationFrame(step);
    waiting = true;
  }

  function step(stamp) {
    waiting = false;
    if (playing && seen) {
      // A page that was hidden goes on where it was.
      const seconds = before === null ? 0 : Math.min(0.1, (stamp - before) / 1000);
      before = stamp;
      advance(seconds, BUDGET);
      scene.turn(0, TURN * seconds);
      ask();
    }
    draw();
  }

  function play(wanted) {
    playing = wanted;
    before = null;
    button.textContent = playing ? "Pause" : "Play";
    ask();
  }

  scene.onchange = ask;
  button.addEventListener("click", () => play(!playing));
  // The switch of the site for light and dark, and a reader who scrolls the picture out of sight.
  new MutationObserver(() => {
    scene._theme();
    ask();
  }).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  new IntersectionObserver(([entry]) => {
    seen = entry.isIntersecting;
    before = null;
    ask();
  }).observe(canvas);

  restart();
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (still) {
    advance(STILL / PACE, Infinity);
    past = [];
  }
  play(!still);
})();
