/* Tokens on a canvas: the circle, the sphere, or a box of the plane or of space, turned and zoomed by hand.

   One file for the player (`clusterjax.plot.player`) and the playground. Invariants: points are rows of d = 2 or 3
   numbers with everything inside [-1, 1]; the projection is orthographic, with right = (-sin a, cos a, 0), and what is
   drawn is what `screen` answers; a point that is not finite is left out. */
(function () {
  "use strict";
  const root = (window.clusterjax = window.clusterjax || {});
  const DEGREE = Math.PI / 180;
  const LARGEST_KEPT = 1500; // pixels of the radius of a ball that is drawn once
  const MOST_GROUPED = 1500; // tokens whose crowds are counted: all pairs are looked at in each frame

  /** The first member of each token's cluster, chains of steps of at most `radius` being followed; -1 for no point. */
  function labels(x, n, d, radius) {
    const parent = new Int32Array(n);
    for (let i = 0; i < n; i++) parent[i] = i;
    const find = (i) => {
      while (parent[i] !== i) i = parent[i] = parent[parent[i]];
      return i;
    };
    const scale = 1 / radius;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < i; j++) {
        let square = 0;
        for (let k = 0; k < d; k++) {
          const step = (x[i * d + k] - x[j * d + k]) * scale;
          square += step * step;
        }
        if (square <= 1) {
          const a = find(i), b = find(j);
          // The smaller index is the root: labels are first members.
          if (a < b) parent[b] = a;
          else parent[a] = b;
        }
      }
    }
    const found = new Int32Array(n);
    for (let i = 0; i < n; i++) {
      let finite = true;
      for (let k = 0; k < d; k++) finite = finite && Number.isFinite(x[i * d + k]);
      found[i] = finite ? find(i) : -1;
    }
    return found;
  }

  /** How many clusters there are. */
  function countClusters(x, n, d, radius) {
    const found = labels(x, n, d, radius);
    let count = 0;
    for (let i = 0; i < n; i++) if (found[i] === i) count++;
    return count;
  }

  const parse = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const write = (rgb) => "#" + rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("");
  /** `share` of the first colour and the rest of the second, opaque: many on one spot are as pale as one. */
  const mixed = (a, b, share) => {
    const other = parse(b);
    return write(parse(a).map((v, k) => share * v + (1 - share) * other[k]));
  };

  class Scene {
    /** `options`: d (2 or 3), kind ("sphere", "ball" or "box"), elev, azim, size, and for boxes `range`, d pairs. */
    constructor(canvas, options) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
      this.onchange = () => {};
      this.palette = ["#0072b2"];
      this.configure(options);
      this._listen();
      const theme = () => {
        this._theme();
        this.onchange();
      };
      window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
      this._theme();
      this.resize();
      new ResizeObserver(() => {
        if (this.resize()) this.onchange();
      }).observe(canvas);
    }

    configure(options) {
      const flat = options.d === 2;
      this.options = Object.assign({ kind: "sphere", size: 1, elev: flat ? 90 : 22, azim: flat ? -90 : -55 }, options);
      this.reset();
    }

    reset() {
      this.zoom = 1;
      this.view(this.options.elev, this.options.azim);
    }

    /** Look from this elevation and azimuth, in degrees. */
    view(elev, azim) {
      this.elev = Math.max(-90, Math.min(90, elev));
      this.azim = ((((azim + 180) % 360) + 360) % 360) - 180;
      const e = this.elev * DEGREE, a = this.azim * DEGREE;
      this.right = [-Math.sin(a), Math.cos(a), 0];
      this.up = [-Math.sin(e) * Math.cos(a), -Math.sin(e) * Math.sin(a), Math.cos(e)];
      this.towards = [Math.cos(e) * Math.cos(a), Math.cos(e) * Math.sin(a), Math.sin(e)];
    }

    turn(up, right) {
      this.view(this.elev + up, this.azim + right);
      this.onchange();
    }

    zoomBy(factor) {
      this.zoom = Math.max(0.4, Math.min(12, this.zoom * factor));
      this.onchange();
    }

    /** The colours by number that `draw` is told for each token: hexadecimal. */
    colours(palette) {
      if (palette.join() === this.palette.join()) return;
      this.palette = palette;
      this._shades();
    }

    _theme() {
      const style = getComputedStyle(this.canvas);
      const named = (name) => style.getPropertyValue("--" + name).trim();
      this.theme = {};
      for (const name of ["paper", "ink", "grey", "line", "ball", "ball-edge", "first"]) this.theme[name] = named(name);
      this._shades();
    }

    _shades() {
      const paper = this.theme.paper, ink = this.theme.ink, all = this.palette.concat([this.theme.first]);
      this.shades = all.map((colour) => ({
        near: colour,
        far: mixed(colour, this.theme.ball, 0.42),
        rim: mixed(colour, ink, 0.62),
        farRim: mixed(mixed(colour, this.theme.ball, 0.42), ink, 0.8),
        // Trails from the oldest part to the newest.
        trail: [0.22, 0.34, 0.48, 0.64].map((share) => mixed(colour, this.theme.ball || paper, share)),
      }));
    }

    resize() {
      const box = this.canvas.getBoundingClientRect(), ratio = Math.min(2, window.devicePixelRatio || 1);
      const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
      if (this.canvas.width === width && this.canvas.height === height) return false;
      this.canvas.width = width;
      this.canvas.height = height;
      return true;
    }

    get scale() {
      const reach = this.options.kind === "box" ? (this.options.d === 2 ? 1.3 : 1.72) : 1.2;
      return (this.zoom * Math.min(this.canvas.width, this.canvas.height)) / (2 * reach);
    }

    /** Pixels of the canvas, and the height above the paper, of points (n, d): three numbers each. */
    screen(x, n, d, out) {
      out = out || new Float64Array(3 * n);
      const s = this.scale, cx = this.canvas.width / 2, cy = this.canvas.height / 2;
      const [r, u, t] = [this.right, this.up, this.towards];
      for (let i = 0; i < n; i++) {
        const a = x[i * d], b = x[i * d + 1], c = d > 2 ? x[i * d + 2] : 0;
        out[3 * i] = cx + s * (r[0] * a + r[1] * b);
        out[3 * i + 1] = cy - s * (u[0] * a + u[1] * b + u[2] * c);
        out[3 * i + 2] = t[0] * a + t[1] * b + t[2] * c;
      }
      return out;
    }

    /** Draws a frame: x (n d numbers), n, colour (a number of the palette for each token, or null), highlight (a token
        or -1), trail (arrays like x, the oldest first), path (the points of the followed token, in a row), counts (the least crowd whose size is written, or 0), arrows
        ([{name, v}]). */
    draw(frame) {
      const g = this.context, { d, kind } = this.options, n = frame.n;
      g.setTransform(1, 0, 0, 1, 0, 0);
      g.fillStyle = this.theme.paper;
      g.fillRect(0, 0, this.canvas.width, this.canvas.height);
      g.lineCap = g.lineJoin = "round";
      this.unit = Math.min(this.canvas.width, this.canvas.height) / 420;
      const at = (this.placed = this.screen(frame.x, n, d));
      const order = [];
      for (let i = 0; i < n; i++) if (Number.isFinite(at[3 * i]) && Number.isFinite(at[3 * i + 1])) order.push(i);
      order.sort((i, j) => at[3 * i + 2] - at[3 * j + 2]);
      const depth = kind !== "box" && d === 3;
      const behind = (i) => depth && at[3 * i + 2] < 0;
      this._backdrop(-1);
      this._trails(frame, depth ? -1 : 0);
      this._path(frame, depth ? -1 : 0);
      const crowds = this._crowds(frame, order, at);
      for (const i of order) if (behind(i)) this._token(frame, i, at, crowds, true);
      if (depth) {
        this._backdrop(1);
        this._trails(frame, 1);
        this._path(frame, 1);
      }
      for (const i of order) if (!behind(i) && i !== frame.highlight) this._token(frame, i, at, crowds, false);
      const h = frame.highlight;
      // The followed token stands on top of those in front: it may be in the middle of a crowd.
      if (h >= 0 && h < n && order.includes(h) && !behind(h)) this._token(frame, h, at, crowds, false);
      for (const arrow of frame.arrows || []) this._arrow(arrow);
      this._counts(frame, crowds, at);
    }

    _colour(frame, i) {
      return this.shades[i === frame.highlight ? this.palette.length : frame.colour ? frame.colour[i] : 0];
    }

    _token(frame, i, at, crowds, behind) {
      const g = this.context, followed = i === frame.highlight, shade = this._colour(frame, i);
      const many = frame.n > 400 ? Math.sqrt(400 / frame.n) : 1;
      let radius = 4.6 * this.unit * this.options.size * Math.max(0.35, many);
      if (!behind && crowds.growth[i]) radius *= crowds.growth[i];
      // A hint of perspective, though the projection has none.
      if (this.options.d === 3) radius *= 1 + 0.14 * Math.max(-1, Math.min(1, at[3 * i + 2]));
      if (followed) radius *= 1.32;
      g.beginPath();
      g.arc(at[3 * i], at[3 * i + 1], radius, 0, 2 * Math.PI);
      g.fillStyle = behind ? shade.far : shade.near;
      g.fill();
      g.lineWidth = (followed ? 1.5 : 0.8) * this.unit;
      g.strokeStyle = followed ? (behind ? this.theme.grey : this.theme.ink) : behind ? shade.farRim : shade.rim;
      g.stroke();
    }

    /** Tokens on one spot: how many each has beside it, by its first member; what their markers grow by. */
    _crowds(frame, order, at) {
      const crowds = { sizes: new Map(), growth: [] };
      if (!frame.counts || frame.n > MOST_GROUPED) return crowds;
      const found = labels(frame.x, frame.n, this.options.d, 0.05);
      for (const i of order) crowds.sizes.set(found[i], (crowds.sizes.get(found[i]) || 0) + 1);
      for (const i of order) crowds.growth[i] = Math.min(1.7, Math.pow(crowds.sizes.get(found[i]), 0.12));
      return crowds;
    }

    _counts(frame, crowds, at) {
      const g = this.context, size = 11.5 * this.unit, written = [];
      g.font = `600 ${size}px system-ui, sans-serif`;
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.lineWidth = 3 * this.unit;
      g.strokeStyle = this.theme.ball;
      const cx = this.canvas.width / 2, cy = this.canvas.height / 2;
      const large = [...crowds.sizes].filter(([, many]) => many >= frame.counts).sort((a, b) => b[1] - a[1]);
      for (const [i, many] of large) {
        const behind = this.options.d === 3 && this.options.kind !== "box" && at[3 * i + 2] < 0;
        let dx = at[3 * i] - cx, dy = at[3 * i + 1] - cy;
        const length = Math.hypot(dx, dy);
        // Inwards on the sphere's rim, where outwards would leave the picture; upwards in the middle.
        if (length < 0.2 * this.scale) [dx, dy] = [0, -1];
        else [dx, dy] = [dx / length, dy / length];
        const away = 19 * this.unit, rim = this.options.d === 3 && length + 2 * away > 1.1 * this.scale ? -1 : 1;
        const x = at[3 * i] + rim * away * dx, y = at[3 * i + 1] + rim * away * dy;
        if (written.some(([a, b]) => Math.abs(a - x) < 2.6 * size && Math.abs(b - y) < 1.2 * size)) continue;
        written.push([x, y]);
        g.strokeText("×" + many, x, y);
        g.fillStyle = behind ? this.theme.grey : this.theme.ink;
        g.fillText("×" + many, x, y);
      }
    }

    /** side: -1 behind the ball, 1 before it, 0 both. */
    _trails(frame, side) {
      const past = frame.trail || [], g = this.context, { d, kind } = this.options, n = frame.n;
      if (!past.length) return;
      const all = past.concat([frame.x]);
      const inwards = d === 2 && kind === "sphere";
      const places = all.map((x, k) => {
        if (inwards) {
          // On the circle a path would cover itself: it comes outward from within.
          const radius = 1 - (0.34 * (all.length - 1 - k)) / Math.max(1, all.length - 1);
          x = x.map((value) => value * radius);
        }
        return this.screen(x, n, d);
      });
      g.lineWidth = 1.3 * this.unit;
      // Thousands of short segments: round ends and joins would cost more than all else.
      g.lineCap = "butt";
      g.lineJoin = "bevel";
      const byColour = new Map();
      for (let i = 0; i < n; i++) {
        const shade = this._colour(frame, i);
        if (!byColour.has(shade)) byColour.set(shade, []);
        byColour.get(shade).push(i);
      }
      for (const [shade, members] of byColour) {
        // All tokens of a colour and all parts of an age in one path: a stroke is dear, a segment is not.
        for (let age = 0; age < 4; age++) {
          const from = Math.floor(((all.length - 1) * age) / 4), to = Math.floor(((all.length - 1) * (age + 1)) / 4);
          if (from === to) continue;
          g.beginPath();
          let any = false;
          for (const i of members) {
            let down = false;
            for (let k = from; k <= to; k++) {
              const p = places[k], x = p[3 * i], y = p[3 * i + 1];
              const shown = Number.isFinite(x) && (side === 0 || (p[3 * i + 2] >= 0 ? 1 : -1) === side);
              if (shown && down) g.lineTo(x, y);
              else if (shown) g.moveTo(x, y);
              any = any || (shown && down);
              down = shown;
            }
          }
          g.strokeStyle = shade.trail[side < 0 ? Math.max(0, age - 2) : age];
          if (any) g.stroke();
        }
      }
      g.lineCap = g.lineJoin = "round";
    }

    /** The way of the followed token, points (k, d) in a row, the newest last. */
    _path(frame, side) {
      const path = frame.path, g = this.context, { d, kind } = this.options, n = path ? path.length / d : 0;
      if (n < 2) return;
      // On the circle it comes outward, as the trails do.
      const spiral = d === 2 && kind === "sphere";
      const at = this.screen(spiral ? path.map((v, k) => v * (0.55 + (0.45 * Math.floor(k / d)) / (n - 1))) : path, n, d);
      let down = false;
      g.beginPath();
      for (let k = 0; k < n; k++) {
        const shown = Number.isFinite(at[3 * k]) && (side === 0 || (at[3 * k + 2] >= 0 ? 1 : -1) === side);
        if (shown) g[down ? "lineTo" : "moveTo"](at[3 * k], at[3 * k + 1]);
        down = shown;
      }
      g.strokeStyle = this.shades[this.palette.length].trail[side < 0 ? 1 : 3];
      g.lineWidth = 1.6 * this.unit;
      g.stroke();
    }

    _backdrop(side) {
      const { d, kind } = this.options;
      if (kind === "box") this._box();
      else if (d === 2) this._circle();
      else this._ball(side);
    }

    _line(points, close) {
      const g = this.context, at = this.screen(points.flat(), points.length, points[0].length);
      g.beginPath();
      for (let i = 0; i < points.length; i++) g[i ? "lineTo" : "moveTo"](at[3 * i], at[3 * i + 1]);
      if (close) g.closePath();
    }

    _circle() {
      const g = this.context, ring = [];
      for (let k = 0; k < 180; k++) ring.push([Math.cos(2 * k * DEGREE), Math.sin(2 * k * DEGREE)]);
      this._line(ring, true);
      g.fillStyle = this.theme.ball;
      g.fill();
      g.strokeStyle = this.theme["ball-edge"];
      g.lineWidth = this.unit;
      g.stroke();
      g.strokeStyle = this.theme.line;
      for (let k = 0; k < 8; k++) {
        const c = Math.cos(45 * k * DEGREE), s = Math.sin(45 * k * DEGREE), inner = k % 2 ? 0.965 : 0.93;
        this._line([[inner * c, inner * s], [c, s]]);
        g.stroke();
      }
    }

    _ball(side) {
      const g = this.context, cx = this.canvas.width / 2, cy = this.canvas.height / 2, s = this.scale;
      if (side < 0) {
        // A gradient is dear without a GPU, and the same in each frame.
        if (s > LARGEST_KEPT) this._light(g, cx, cy);
        else {
          const key = [s, this.unit, this.theme.ball, this.theme["ball-edge"]].join(), half = Math.ceil(s + 2 * this.unit);
          if (key !== this.kept) {
            this.kept = key;
            this.lit = Object.assign(document.createElement("canvas"), { width: 2 * half, height: 2 * half });
            this._light(this.lit.getContext("2d"), half, half);
          }
          g.drawImage(this.lit, Math.round(cx) - half, Math.round(cy) - half);
        }
      }
      g.strokeStyle = side < 0 ? mixed(this.theme.line, this.theme.ball, 0.45) : this.theme.line;
      g.lineWidth = 0.6 * this.unit;
      g.beginPath();
      for (const line of GRATICULE) {
        const at = this.screen(line, line.length / 3, 3);
        let down = false;
        for (let k = 0; k < line.length / 3; k++) {
          const shown = (at[3 * k + 2] >= 0 ? 1 : -1) === side;
          if (shown) g[down ? "lineTo" : "moveTo"](at[3 * k], at[3 * k + 1]);
          down = shown;
        }
      }
      g.stroke();
    }

    /** The ball, lit from above on the left. */
    _light(g, cx, cy) {
      const s = this.scale, light = g.createRadialGradient(cx - 0.35 * s, cy - 0.4 * s, 0.1 * s, cx, cy, s);
      light.addColorStop(0, this.theme.ball);
      light.addColorStop(1, mixed(this.theme.ball, this.theme["ball-edge"], 0.86));
      g.beginPath();
      g.arc(cx, cy, s, 0, 2 * Math.PI);
      g.fillStyle = light;
      g.fill();
      g.strokeStyle = this.theme["ball-edge"];
      g.lineWidth = this.unit;
      g.stroke();
    }

    _box() {
      const g = this.context, d = this.options.d;
      g.strokeStyle = this.theme.line;
      g.lineWidth = 0.8 * this.unit;
      const ends = [-1, 1];
      if (d === 2) {
        this._line([[-1, -1], [1, -1], [1, 1], [-1, 1]], true);
        g.stroke();
      } else {
        for (const a of ends)
          for (const b of ends)
            for (const edge of [[[a, b, -1], [a, b, 1]], [[a, -1, b], [a, 1, b]], [[-1, a, b], [1, a, b]]]) {
              this._line(edge);
              g.stroke();
            }
      }
      g.fillStyle = this.theme.grey;
      g.font = `${10.5 * this.unit}px system-ui, sans-serif`;
      g.textAlign = "center";
      g.textBaseline = "middle";
      (this.options.range || []).forEach(([low, high], axis) => {
        // In the middle of an edge of the box, a little outside of it.
        const place = d === 2 ? [-1.12, -1.12] : [-1.25, -1.25, -1.25];
        place[axis] = d === 2 && axis === 1 ? 1.08 : 0;
        const at = this.screen(place, 1, d);
        g.fillText(`${short(low)} … ${short(high)}`, at[0], at[1]);
      });
    }

    _arrow({ name, v }) {
      const g = this.context, d = v.length, length = this.options.kind === "sphere" && d === 3 ? 1.12 : 0.42;
      const tip = this.screen(v.map((value) => value * length), 1, d), from = this.screen(v.map(() => 0), 1, d);
      const dx = tip[0] - from[0], dy = tip[1] - from[1], size = Math.hypot(dx, dy);
      g.strokeStyle = g.fillStyle = d === 3 && tip[2] < 0 ? this.theme.grey : this.theme.ink;
      g.lineWidth = 1.2 * this.unit;
      g.beginPath();
      g.moveTo(from[0], from[1]);
      g.lineTo(tip[0], tip[1]);
      g.stroke();
      if (size < 1) return;
      const a = dx / size, b = dy / size, head = 7 * this.unit;
      g.beginPath();
      g.moveTo(tip[0], tip[1]);
      g.lineTo(tip[0] - head * a - 0.4 * head * b, tip[1] - head * b + 0.4 * head * a);
      g.lineTo(tip[0] - head * a + 0.4 * head * b, tip[1] - head * b - 0.4 * head * a);
      g.fill();
      g.font = `${11 * this.unit}px system-ui, sans-serif`;
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText(name, tip[0] + 12 * this.unit * a, tip[1] + 12 * this.unit * b);
    }

    _listen() {
      const fingers = new Map(), canvas = this.canvas;
      const spread = () => {
        const [a, b] = [...fingers.values()];
        return Math.hypot(a[0] - b[0], a[1] - b[1]);
      };
      canvas.addEventListener("pointerdown", (event) => {
        if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
        fingers.set(event.pointerId, [event.clientX, event.clientY]);
      });
      canvas.addEventListener("pointermove", (event) => {
        const before = fingers.get(event.pointerId);
        if (!before) return;
        const apart = fingers.size === 2 ? spread() : 0;
        fingers.set(event.pointerId, [event.clientX, event.clientY]);
        if (fingers.size === 2) {
          if (apart > 0) this.zoomBy(spread() / apart);
        } else if (fingers.size === 1) {
          // Half a turn across the picture.
          const gain = 180 / Math.max(1, Math.min(canvas.clientWidth, canvas.clientHeight));
          this.turn(gain * (event.clientY - before[1]), -gain * (event.clientX - before[0]));
        }
      });
      for (const end of ["pointerup", "pointercancel"])
        canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
      canvas.addEventListener(
        "wheel",
        (event) => {
          // The plain wheel scrolls the page; pinching a touchpad comes as a wheel with ctrl.
          if (!event.ctrlKey && !event.metaKey) return;
          event.preventDefault();
          this.zoomBy(Math.exp(-0.01 * event.deltaY));
        },
        { passive: false },
      );
      canvas.addEventListener("keydown", (event) => {
        // As a finger would pull it.
        const turns = { ArrowLeft: [0, 5], ArrowRight: [0, -5], ArrowUp: [-5, 0], ArrowDown: [5, 0] };
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (turns[event.key]) this.turn(...turns[event.key]);
        else if (event.key === "+" || event.key === "=") this.zoomBy(1.15);
        else if (event.key === "-") this.zoomBy(1 / 1.15);
        else if (event.key === "0") {
          this.reset();
          this.onchange();
        } else return;
        event.preventDefault();
        event.stopPropagation();
      });
    }
  }

  /** Parallels and meridians, 30 degrees apart, in steps of 5 degrees. */
  const GRATICULE = (() => {
    const lines = [], steps = Array.from({ length: 73 }, (_, k) => 5 * k * DEGREE);
    for (let e = -60; e <= 60; e += 30)
      lines.push(steps.flatMap((s) => [
        Math.cos(e * DEGREE) * Math.cos(s), Math.cos(e * DEGREE) * Math.sin(s), Math.sin(e * DEGREE),
      ]));
    for (let a = 0; a < 180; a += 30)
      lines.push(steps.flatMap((s) => [
        Math.sin(s) * Math.cos(a * DEGREE), Math.sin(s) * Math.sin(a * DEGREE), Math.cos(s),
      ]));
    return lines;
  })();

  /** A number in at most four digits. */
  function short(value) {
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  }

  root.Scene = Scene;
  root.labels = labels;
  root.countClusters = countClusters;
  root.short = short;
})();
