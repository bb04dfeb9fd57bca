/* The two small charts: clusters and energy over time, and the histogram of the cosines. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});

  /** The context of a chart, as large as it is shown, and the colours of the page. */
  function sheet(canvas) {
    const ratio = Math.min(2, window.devicePixelRatio || 1), style = getComputedStyle(canvas);
    const width = Math.max(1, Math.round(canvas.clientWidth * ratio)), height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const g = canvas.getContext("2d"), colour = (name) => style.getPropertyValue("--" + name).trim();
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = `${11 * ratio}px system-ui, sans-serif`;
    g.lineJoin = "round";
    return { g, width, height, ratio, colour };
  }

  /** Counts in equal bins of [-1, 1]. */
  function drawHistogram(canvas, counts) {
    const { g, width, height, ratio, colour } = sheet(canvas), foot = 15 * ratio, top = Math.max(1, ...counts);
    const wide = width / counts.length;
    g.fillStyle = colour("token");
    counts.forEach((count, k) => {
      // The square root: the bin of equal tokens would hide all others.
      const tall = Math.sqrt(count / top) * (height - foot - 2 * ratio);
      g.fillRect(k * wide + 0.5, height - foot - tall, Math.max(1, wide - 1), tall);
    });
    g.strokeStyle = colour("control");
    g.beginPath();
    g.moveTo(0, height - foot);
    g.lineTo(width, height - foot);
    g.stroke();
    g.fillStyle = colour("grey");
    g.textBaseline = "bottom";
    [["left", "-1", 0], ["center", "0", width / 2], ["right", "1", width]].forEach(([align, text, x]) => {
      g.textAlign = align;
      g.fillText(text, x, height);
    });
  }

  /** Points {t, clusters, energy}: clusters from 1 to n, the energy from its least to its largest. */
  function drawSeries(canvas, points, { until, n, logarithmic }) {
    const { g, width, height, ratio, colour } = sheet(canvas), foot = 15 * ratio, floor = height - foot, head = 4 * ratio;
    const place = (t) => (logarithmic ? Math.log1p(t) / Math.log1p(until) : t / until) * width;
    g.strokeStyle = colour("control");
    g.beginPath();
    g.moveTo(0, floor);
    g.lineTo(width, floor);
    g.stroke();
    g.fillStyle = colour("grey");
    g.textBaseline = "bottom";
    g.textAlign = "left";
    g.fillText("0", 0, height);
    g.textAlign = "right";
    g.fillText(`t = ${root.short(until)}`, width, height);
    const line = (heights, dash, name) => {
      g.beginPath();
      let down = false;
      points.forEach(({ t }, k) => {
        if (!Number.isFinite(heights[k])) return;
        g[down ? "lineTo" : "moveTo"](place(t), floor - heights[k] * (floor - head));
        down = true;
      });
      g.setLineDash(dash.map((v) => v * ratio));
      g.strokeStyle = colour(name);
      g.lineWidth = 2 * ratio;
      g.stroke();
      g.setLineDash([]);
    };
    // On a logarithmic scale, as one cluster differs from two by as much as 32 from 64.
    line(points.map((one) => Math.log(one.clusters) / Math.log(n)), [], "token");
    const energies = points.map((one) => one.energy), low = Math.min(...energies), high = Math.max(...energies);
    line(energies.map((one) => (high - low > 1e-9 ? (one - low) / (high - low) : 0.5)), [5, 4], "second");
  }

  Object.assign(root, { drawHistogram, drawSeries });
})();
