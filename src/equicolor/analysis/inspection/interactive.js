"use strict";
// Shows the results for one example at one angle; interactive.py writes the data.

const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("hue");
const photo = document.getElementById("photo");
const half = Math.floor(data.steps / 2);
const state = { example: 0, step: 0 };
const sheets = new Map(); // images by address, so that each is decoded once
const followers = []; // functions that draw the current state

/** An element with attributes and children; strings become text, never HTML. */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Call `use` with a decoded image. */
function withSheet(address, use) {
  if (!sheets.has(address)) {
    const image = new Image();
    image.src = address;
    sheets.set(address, image);
  }
  const image = sheets.get(address);
  if (image.complete) use(image);
  else image.addEventListener("load", () => use(image), { once: true });
}

/** The number of the current angle; those computed go from 0 to a whole turn. */
const frame = () => (state.step + data.steps) % data.steps;
const degrees = (step) => `${Math.round((3600 * step) / data.steps) / 10}°`;
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);

function drawPhoto(canvas, address, side, number) {
  const pitch = Math.ceil(side / 8) * 8; // whole blocks of a JPEG
  canvas.width = canvas.height = side;
  const x = (number % data.columns) * pitch;
  const y = Math.floor(number / data.columns) * pitch;
  withSheet(address, (sheet) => {
    canvas.getContext("2d").drawImage(sheet, x, y, side, side, 0, 0, side, side);
  });
}

/** Register a function that draws; it is called whenever the example or the angle changes. */
function follow(draw) {
  followers.push(draw);
}

function show() {
  for (const draw of followers) draw();
}

function setStep(step) {
  // The slider is a circle: steps beyond one end continue at the other.
  state.step = step > half ? step - data.steps : step < -half ? step + data.steps : step;
  slider.value = state.step;
  show();
}

function buildControls() {
  slider.min = -half;
  slider.max = half;
  slider.value = 0;
  slider.addEventListener("input", () => setStep(Number(slider.value)));
  document.getElementById("reset").addEventListener("click", () => setStep(0));
  follow(() => {
    const { label, photos } = data.examples[state.example];
    const turned = degrees(state.step);
    document.getElementById("angle").textContent = turned;
    slider.setAttribute("aria-valuetext", turned);
    photo.setAttribute("aria-label", `${label}, hue turned by ${turned}`);
    drawPhoto(photo, photos, data.side, frame());
  });
  buildExamples();
  buildPlay();
  buildDrag();
}

function buildExamples() {
  const fieldset = document.getElementById("examples");
  data.examples.forEach(({ label, photos }, index) => {
    const name = `${label}, example ${index + 1} of ${data.examples.length}`;
    const radio = element("input", { type: "radio", name: "example", "aria-label": name });
    const canvas = element("canvas", { "aria-hidden": "true" });
    radio.checked = index === 0;
    radio.addEventListener("change", () => {
      state.example = index;
      show();
    });
    drawPhoto(canvas, photos, data.side, 0);
    fieldset.append(element("label", { title: label }, radio, canvas));
  });
  fieldset.hidden = data.examples.length === 1;
}

function buildPlay() {
  const button = document.getElementById("play");
  let timer = 0;
  button.addEventListener("click", () => {
    if (timer) clearInterval(timer);
    timer = timer ? 0 : setInterval(() => setStep(state.step + 1), 120);
    button.setAttribute("aria-pressed", String(timer !== 0));
    button.textContent = timer ? "Pause" : "Play";
  });
}

/** Dragging across the whole image turns the hue by a whole turn. */
function buildDrag() {
  let start = null;
  photo.addEventListener("pointerdown", (event) => {
    start = { x: event.clientX, step: state.step };
    photo.setPointerCapture(event.pointerId);
  });
  photo.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const turns = (event.clientX - start.x) / photo.clientWidth;
    const step = start.step + Math.round(turns * data.steps);
    setStep(Math.max(-half, Math.min(half, step)));
  });
  for (const end of ["pointerup", "pointercancel"]) {
    photo.addEventListener(end, () => (start = null));
  }
}

/** The accuracy, interpolated between the two nearest shifts that were measured. */
function accuracyAt(curve, turns) {
  const after = curve.findIndex(([shift]) => shift >= turns);
  if (after < 0) return curve[curve.length - 1][1];
  if (after === 0) return curve[0][1];
  const [left, right] = [curve[after - 1], curve[after]];
  const share = (turns - left[0]) / (right[0] - left[0]);
  return left[1] + share * (right[1] - left[1]);
}

function buildCurve() {
  const judged = data.networks.map((network, index) => ({ ...network, index }))
    .filter((network) => network.curve !== null);
  if (judged.length === 0) return;
  document.getElementById("curve").hidden = false;
  const plot = document.getElementById("plot");
  const legend = document.getElementById("legend");
  const values = judged.map(({ title, index }) => {
    const value = element("strong");
    const name = data.networks.length > 1 ? `${title}: ` : "";
    legend.append(element("li", { class: className(index) }, name, value));
    return value;
  });
  const draw = () => plot.replaceChildren(plotOf(judged, plot.clientWidth));
  // Draw anew, so that texts keep their size at any width. Not before the next frame, because
  // drawing resizes the observed element.
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(plot);
  follow(() => {
    judged.forEach(({ curve }, index) => {
      const accuracy = accuracyAt(curve, state.step / data.steps);
      values[index].textContent = `${accuracy.toFixed(1)} % right at ${degrees(state.step)}`;
    });
    draw();
  });
}

/** Curves of networks with the current angle, as SVG. */
function plotOf(networks, width) {
  const [left, right, top, bottom, height] = [40, 12, 10, 24, 190];
  const x = (turns) => left + (turns + 0.5) * (width - left - right);
  const y = (value) => top + (1 - value / 100) * (height - top - bottom);
  const make = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", "Accuracy in percent over the hue shift in degrees");
  for (const value of [0, 50, 100]) {
    const line = { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" };
    svg.append(make("line", line));
    const place = { x: left - 6, y: y(value) + 4, "text-anchor": "end" };
    svg.append(make("text", place, `${value}%`));
  }
  for (const turns of [-0.5, -0.25, 0, 0.25, 0.5]) {
    const anchor = turns === 0.5 ? "end" : turns === -0.5 ? "start" : "middle";
    const place = { x: x(turns), y: height - 6, "text-anchor": anchor };
    svg.append(make("text", place, `${360 * turns}°`));
  }
  const here = state.step / data.steps;
  svg.append(make("line", { x1: x(here), x2: x(here), y1: top, y2: y(0), class: "here" }));
  for (const { curve, index } of networks) {
    const points = curve.map(([shift, value]) => `${x(shift)},${y(value)}`).join(" ");
    svg.append(make("polyline", { points, class: className(index) }));
    const [cx, cy] = [x(here), y(accuracyAt(curve, here))];
    svg.append(make("circle", { cx, cy, r: 7 - 2 * index, class: className(index) }));
  }
  return svg;
}

const className = (index) => (index === 0 ? "first" : "second");

function buildNetwork(network, index) {
  const section = element("section", { class: className(index) });
  section.append(element("h2", {}, network.title));
  buildAnswers(network, section);
  if (network.naturalSide !== null) buildNatural(network, section);
  const layers = network.layers.map((layer, number) => buildLayer(network, layer, number));
  const scale =
    "Feature maps, from the smallest (black) to the largest activation of a channel at any hue." +
    (network.layers.some(({ rotations }) => rotations > 1)
      ? " The strongest rotation of a channel is framed." : "");
  section.append(element("p", {}, scale), element("div", { class: "layers" }, ...layers));
  document.getElementById("networks").append(section);
}

function buildAnswers(network, section) {
  const answer = element("p", { class: "answer", role: "status" });
  const body = element("tbody");
  const head = ["class", "probability", "logit"].map((text, column) =>
    element("th", { scope: "col", class: column ? "number" : "" }, text));
  const table = element("table", { class: "answers" });
  table.append(element("thead", {}, element("tr", {}, ...head)), body);
  section.append(answer, table);
  if (!network.judged) {
    const why = "Its outputs are not the classes of these images: no answer is right or wrong.";
    section.append(element("p", { class: "note" }, why));
  }
  follow(() => {
    const { answers, best } = network.examples[state.example];
    const number = frame();
    const { name, probability, right } = best[number];
    const { label } = data.examples[state.example];
    const verdict = !network.judged ? "" : right ? ", right" : `, wrong: it is ${label}`;
    answer.className = network.judged && !right ? "answer wrong" : "answer";
    const rest = ` with ${percent(probability)}${verdict}`;
    answer.replaceChildren("Answer: ", element("strong", {}, name), rest);
    body.replaceChildren(...answers.map((each) => answerRow(each, number, each.name === name)));
  });
}

function answerRow({ name, right, logits, probabilities }, number, isBest) {
  const share = probabilities[number];
  const logit = logits[number];
  const text = right ? `${name} ✓` : name;
  const heading = element("th", { scope: "row", title: right ? `${name}, the right class` : name });
  heading.append(text);
  heading.style.setProperty("--share", `${100 * (share ?? 0)}%`);
  return element(
    "tr",
    { class: isBest ? "top" : "" },
    heading,
    element("td", { class: "number" }, percent(share)),
    element("td", { class: "number" }, logit === null ? "–" : logit.toFixed(2)),
  );
}

/** The image as a canonicalised network sees it. */
function buildNatural(network, section) {
  const canvas = element("canvas", { role: "img", "aria-label": "The image, turned back" });
  const note = element("p", { class: "note" });
  note.append("What the network sees: the image, put back into its natural hue or light.");
  section.append(element("div", { class: "seen" }, canvas, note));
  follow(() => {
    const { natural } = network.examples[state.example];
    drawPhoto(canvas, natural, network.naturalSide, frame());
  });
}

function buildLayer(network, layer, number) {
  const { name, channels, rotations, width, height } = layer;
  const rows = element("div", { class: rotations > 1 ? "rows rolling" : "rows", role: "img" });
  rows.setAttribute("aria-label", `Features of ${name} at the current hue`);
  const lines = rotations > 1 ? channels.length : 1;
  const count = rotations > 1 ? rotations : channels.length;
  rows.style.setProperty("--tiles", count);
  if (rotations > 1) {
    const angles = Array.from({ length: count }, (_, tile) =>
      element("span", {}, degrees((tile * data.steps) / rotations)));
    rows.append(element("div", { class: "row angles" }, ...angles));
  }
  const tiles = [];
  for (let line = 0; line < lines; line += 1) {
    const row = element("div", { class: "row" });
    for (let tile = 0; tile < count; tile += 1) {
      const channel = channels[rotations > 1 ? line : tile];
      const angle = rotations > 1 ? `, rotation ${degrees((tile * data.steps) / rotations)}` : "";
      const canvas = element("canvas", { width, height, title: `channel ${channel}${angle}` });
      row.append(canvas);
      tiles.push(canvas);
    }
    rows.append(row);
  }
  follow(() => {
    const { features, strongest } = network.examples[state.example];
    const line = frame();
    withSheet(features[number], (sheet) => {
      tiles.forEach((canvas, tile) => {
        const context = canvas.getContext("2d");
        context.drawImage(sheet, tile * width, line * height, width, height, 0, 0, width, height);
      });
    });
    if (rotations === 1) return;
    tiles.forEach((canvas, tile) => {
      const winner = strongest[number][line][Math.floor(tile / rotations)];
      canvas.classList.toggle("strongest", tile % rotations === winner);
    });
  });
  const note = element("p", { class: "note" }, layerNote(layer));
  return element("div", {}, element("h3", {}, name), note, rows);
}

function layerNote({ channels, rotations }) {
  if (rotations === 1) return `The ${channels.length} channels that change most with the hue.`;
  return (
    `${channels.length} channels (lines) in ${rotations} rotations (columns). With every ` +
    `${degrees(data.steps / rotations)} of hue, all tiles move one column to the right.`
  );
}

buildControls();
buildCurve();
data.networks.forEach(buildNetwork);
show();
