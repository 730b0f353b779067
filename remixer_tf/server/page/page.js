// The page of `remixer_tf serve`. Texts of the server are set by textContent alone.

const $ = (id) => document.getElementById(id);
const END = "end"; // shown for the token that ends an answer
const WAYS = [
  { label: "The answer", options: {} },
  { label: "5 best answers", options: { beams: 5, n_best: 5 } },
  { label: "10 best answers", options: { beams: 10, n_best: 10 } },
  { label: "Drawn, temperature 0.7", options: { temperature: 0.7 } },
  { label: "Drawn, temperature 1", options: { temperature: 1 } },
];

let token = null; // in memory alone
let models = [];
let model = null;
let running = null; // the AbortController of the answer that is being written
let asked = null; // {inputs, targets}: what the layers are shown for
let best = null; // log-probability of the model's own answer

// The server.

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, body, signal) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const options = { headers, signal };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer.", 0);
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error;
  const message = error?.message ?? error ?? `The server answered ${response.status}.`;
  throw new Refused(message, response.status);
}

async function call(name, fields, signal) {
  const response = await request(name, { ...fields, model: model.id }, signal);
  const found = await response.json();
  if (found.version !== model.version) loadModels(); // A newer one answers now.
  return found;
}

// Yields the pieces of an answer as they are written.
async function* pieces(prompt, options, signal) {
  const body = { model: model.id, prompt, stream: true, ...options };
  const response = await request("v1/completions", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const found = JSON.parse(data);
      if (found.error) throw new Refused(found.error.message, 500);
      if (found.choices.length) yield found.choices[0].text;
    }
  }
}

// Small parts.

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function percent(p) {
  if (p >= 0.1) return `${(100 * p).toFixed(1)}%`;
  return p === 0 || p >= 1e-5 ? `${Number((100 * p).toPrecision(2))}%` : power(Math.log(p));
}

// The probability of a long answer is less than the least number of JavaScript.
const percentOf = (log) => (log < -11 ? power(log) : percent(Math.exp(log)));

// A number such as 7.7×10⁻¹⁸, given by its logarithm.
function power(log) {
  const exponent = Math.floor(log / Math.LN10);
  const digits = Math.exp(log - exponent * Math.LN10).toFixed(1);
  const raised = [...String(exponent)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  return `${digits}×10${raised.join("")}`;
}

function complain(id, error) {
  if (error?.name === "AbortError") return;
  if (error?.status === 401) askForToken();
  $(id).textContent = error?.message ?? "";
  $(id).hidden = !error;
}

// A text whose tokens show how likely each is. Arrow keys go from one to the next.
function tokenText(tokens, say) {
  const label = "Tokens and their probabilities; arrow keys choose one";
  const box = element("div", "", { class: "tokens", role: "listbox", tabindex: 0, "aria-label": label });
  const parts = tokens.map(({ text, log_probability }, i) => {
    const last = !text && i === tokens.length - 1;
    const p = Math.exp(log_probability);
    const [, blank, word] = text.match(/^(\s*)(\S.*)$/s) ?? ["", "", text];
    const part = element("span", word || (last ? END : "·"), { role: "option", id: `${say.id}-${i}` });
    part.classList.toggle("end", last);
    part.style.setProperty("--p", p);
    part.onpointerenter = () => choose(i);
    box.append(blank, part);
    return part;
  });
  const before = say.textContent;
  let chosen = -1;
  function choose(i) {
    parts[chosen]?.removeAttribute("aria-selected");
    chosen = Math.max(-1, Math.min(i, parts.length - 1));
    box.setAttribute("aria-activedescendant", chosen < 0 ? "" : parts[chosen].id);
    if (chosen < 0) return void (say.textContent = before);
    parts[chosen].setAttribute("aria-selected", "true");
    const p = percentOf(tokens[chosen].log_probability);
    say.textContent = `Token ${chosen + 1} of ${parts.length}, “${parts[chosen].textContent.trim()}”: ${p}`;
  }
  box.onblur = () => choose(-1);
  box.onpointerleave = () => document.activeElement === box || choose(-1);
  box.onkeydown = (event) => {
    const to = { ArrowRight: chosen + 1, ArrowLeft: Math.max(0, chosen - 1), Home: 0, End: parts.length - 1, Escape: -1 };
    if (!(event.key in to)) return;
    event.preventDefault();
    choose(to[event.key]);
  };
  return box;
}

// A list of [text, probability]. With `pick`, each is a button.
function bars(rows, pick) {
  const list = element("ol", "", { class: "bars" });
  for (const [text, p] of rows) {
    const bar = element(pick ? "button" : "div", "", pick ? { type: "button" } : {});
    bar.append(element("span", text), element("span", percent(p), { class: "percent" }));
    bar.style.setProperty("--p", p);
    if (pick) bar.onclick = () => pick(text);
    const item = element("li");
    item.append(bar);
    list.append(item);
  }
  return list;
}

// The models.

async function loadModels() {
  let found;
  try {
    found = await (await request("v1/models")).json();
  } catch (error) {
    if (error.status !== 401) $("about").textContent = error.message;
    if (error.status === 401) askForToken();
    else setTimeout(loadModels, 3000);
    return;
  }
  $("token-form").hidden = true;
  models = found.data;
  if (found.loading.length) setTimeout(loadModels, 2000);
  if (!models.length) {
    $("name").textContent = found.loading.join(", ");
    $("about").textContent = "The server loads this model and compiles what it needs.";
    return;
  }
  const chosen = models.find(({ id }) => id === model?.id) ?? models[0];
  $("models").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  $("models").value = chosen.id;
  $("models").hidden = models.length < 2;
  $("name").hidden = models.length > 1;
  const same = model?.id === chosen.id && model.version === chosen.version;
  if (!same) show(chosen, model?.id !== chosen.id);
}

function askForToken() {
  const wrong = token !== null;
  token = null;
  $("name").textContent = "Who asks?";
  $("about").textContent = wrong ? "The server does not know this token." : "";
  $("token-form").hidden = false;
  document.querySelector("main").hidden = true;
  $("token").value = "";
  $("token").focus();
}

$("token-form").onsubmit = (event) => {
  event.preventDefault();
  token = $("token").value;
  model = null;
  loadModels();
};

$("models").onchange = () => show(models.find(({ id }) => id === $("models").value), true);

const can = (name) => model.calls.includes(name);
const takes = (name, field) => Boolean(model.inputs[name]?.includes(field));

// Shows what a model is, and the fields of what it can do.
function show(chosen, isOther) {
  model = chosen;
  document.title = `${model.id} · remixer_tf`;
  $("name").textContent = model.id;
  const { inputs, targets } = model.lengths ?? {};
  const lengths = [inputs && `reads ${tokenCount(inputs)}`, can("generate") && targets && `writes ${targets}`];
  const kind = model.lengths ? "step" : "version"; // Published weights have step 0.
  const step = model.version !== "0" && `${kind} ${model.version}`;
  $("about").textContent = [model.kind, step, model.task, lengths.filter(Boolean).join(", ")]
    .filter(Boolean).join(" · ");
  showMetrics(Object.entries(model.metrics ?? {}));
  document.querySelector("main").hidden = false;
  if (!isOther) return;

  running?.abort();
  const image = takes("classify", "image_bytes");
  const spans = can("answer"), writes = can("generate");
  const pairs = !writes && (spans || takes("classify", "inputs_b") || !can("classify"));
  $("question").hidden = $("question-label").hidden = image;
  $("image-box").hidden = !image;
  $("second-box").hidden = !pairs || image;
  const continues = model.kind === "DecoderOnly";
  $("question-label").textContent = continues ? "Text to continue" : writes || spans ? "Question" : "Text";
  $("other-label").textContent = continues ? "Another text that follows" : "Another answer to the same question";
  $("second-label").textContent = spans ? "Text with the answer"
    : can("classify") ? "Second text, if any" : "Text to compare it with, if any";
  const ways = WAYS.filter(({ options }) => Object.keys(options).every((x) => takes("generate", x)));
  $("how").replaceChildren(...ways.map(({ label }) => new Option(label, label)));
  $("how").hidden = ways.length < 2 || !writes;
  $("send").textContent = sendLabel();
  $("compare").hidden = !can("score") || !writes;
  $("layers").hidden = $("result").hidden = true;
  $("layers").open = false;
  complain("error");
  for (const id of ["answer", "facts", "scored", "scored-facts"]) $(id).replaceChildren();
  asked = best = seen = null;
  $("maps").replaceChildren();
  $("map").hidden = true;
  (image ? $("image") : $("question")).focus();
}

function sendLabel() {
  if (can("generate") || can("answer")) return model.kind === "DecoderOnly" ? "Continue" : "Answer";
  return can("classify") ? "Classify" : "Encode";
}

function showMetrics(rows) {
  $("metrics").hidden = !rows.length;
  rows.sort(([a], [b]) => a.split("/").length - b.split("/").length);
  const short = ([name, value]) => `${name.split("/").slice(1).join(" ") || name} ${Number(value.toPrecision(4))}`;
  $("metrics").firstElementChild.textContent = `Results at this step: ${rows.slice(0, 2).map(short).join(", ")}`;
  $("metrics").querySelector("tbody").replaceChildren(
    ...rows.map(([name, value]) => {
      const row = element("tr");
      row.append(element("td", name), element("td", Number(value.toPrecision(4))));
      return row;
    }),
  );
}

// Asking.

$("ask").onsubmit = async (event) => {
  event.preventDefault();
  if (running) return void running.abort();
  running = new AbortController();
  complain("error");
  $("send").textContent = "Stop";
  $("result").hidden = false;
  $("answer").replaceChildren();
  $("scored").replaceChildren();
  $("facts").textContent = "…";
  $("scored-facts").textContent = "";
  asked = best = null;
  const start = performance.now();
  const took = () => `${Math.round(performance.now() - start).toLocaleString("en")} ms`;
  try {
    if (can("generate")) await write(running.signal, took);
    else if (can("answer")) await answerBySpan(running.signal, took);
    else if (can("classify")) await classify(running.signal, took);
    else await embed(running.signal, took);
  } catch (error) {
    complain("error", error);
    if (error.name === "AbortError") $("facts").textContent = "Stopped.";
    else if (!$("answer").textContent) $("result").hidden = true;
    else $("facts").textContent = "";
  }
  running = null;
  $("send").textContent = sendLabel();
  $("layers").hidden = !asked || !model.observes;
  if ($("layers").open) observe();
};

async function write(signal, took) {
  const inputs = $("question").value;
  const { options } = WAYS.find(({ label }) => label === $("how").value) ?? WAYS[0];
  if (options.n_best || !can("score")) {
    if (options.n_best) $("facts").textContent = "Searching. The first such search is compiled before.";
    const found = await call("generate", { inputs, ...options }, signal);
    const texts = [found.outputs].flat(), scores = [found.scores].flat();
    best = scores[0];
    $("answer").replaceChildren(
      texts.length > 1
        ? bars(texts.map((text, i) => [text, Math.exp(scores[i])]), can("score") && fillOther)
        : element("span", texts[0]),
    );
    const one = texts.length > 1 ? [] : [`probability ${percentOf(best)}`];
    const all = scores.reduce((sum, x) => sum + Math.exp(x), 0);
    const several = texts.length > 1 ? [`together ${percent(all)} of the probability`] : one;
    $("facts").textContent = [...several, took(), cut(found)].filter(Boolean).join(" · ");
    asked = { inputs, targets: texts[0] };
    return;
  }
  let text = "";
  const written = element("span");
  $("answer").append(written);
  for await (const piece of pieces(inputs, options, signal)) {
    text += piece;
    written.textContent = text;
  }
  const time = took();
  asked = { inputs, targets: text };
  const found = await call("score", asked, signal);
  best = found.scores;
  const count = tokenCount(found.num_tokens);
  $("facts").textContent = [`probability ${percentOf(best)}`, count, time, cut(found)]
    .filter(Boolean).join(" · ");
  if (found.tokens) $("answer").replaceChildren(tokenText(found.tokens, $("facts")));
}

const tokenCount = (n) => `${n} token${n === 1 ? "" : "s"}`;

const cut = ({ trimmed }) => trimmed && "a text is longer than the model reads or writes, and was cut";

function fillOther(text) {
  $("other").value = text;
  $("compare").requestSubmit();
  $("compare").scrollIntoView({ block: "nearest" });
}

$("compare").onsubmit = async (event) => {
  event.preventDefault();
  complain("score-error");
  const fields = { inputs: $("question").value, targets: $("other").value };
  const own = asked?.inputs === fields.inputs ? best : null;
  try {
    const found = await call("score", fields);
    const facts = [`probability ${percentOf(found.scores)}`, tokenCount(found.num_tokens)];
    if (own !== null) facts.push(next(found.scores - own));
    $("scored-facts").textContent = [...facts, cut(found)].filter(Boolean).join(" · ");
    $("scored").replaceChildren(...(found.tokens ? [tokenText(found.tokens, $("scored-facts"))] : []));
  } catch (error) {
    $("scored").replaceChildren();
    $("scored-facts").textContent = "";
    complain("score-error", error);
  }
};

// How a log-probability compares with that of the model's answer.
function next(difference) {
  if (Math.abs(difference) < 0.005) return "as likely as the model's answer";
  const log = Math.abs(difference), times = Math.exp(log);
  const shown = times < 1e6 ? Number(times.toPrecision(3)).toLocaleString("en") : power(log);
  return `${shown} times ${difference < 0 ? "less" : "more"} likely than the model's answer`;
}

async function answerBySpan(signal, took) {
  const question = $("question").value, text = $("second").value;
  const found = await call("answer", { question, text }, signal);
  const at = text.indexOf(found.outputs);
  $("answer").textContent = found.outputs || "The text has no answer.";
  if (found.outputs && at >= 0) {
    const place = element("p", text.slice(Math.max(0, at - 200), at), { class: "note" });
    const end = at + found.outputs.length;
    place.append(element("mark", found.outputs), text.slice(end, end + 200));
    $("answer").append(place);
  }
  $("facts").textContent = took();
  asked = { inputs: question, targets: text };
}

async function classify(signal, took) {
  const fields = { inputs: $("question").value };
  if (!$("image-box").hidden) {
    const [file] = $("image").files;
    if (!file) throw new Refused("Choose an image first.", 422);
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    fields.inputs = { b64: btoa(text) };
  } else if (takes("classify", "inputs_b") && $("second").value) fields.inputs_b = $("second").value;
  const found = await call("classify", fields, signal);
  const top = found.probabilities.indexOf(Math.max(...found.probabilities));
  const named = (i) => model.classes?.[i] ?? (i === top ? String(found.labels) : `class ${i}`);
  const rows = found.probabilities.map((p, i) => [named(i), p]).sort((a, b) => b[1] - a[1]);
  $("answer").replaceChildren(bars(rows.slice(0, 10)));
  $("facts").textContent = took();
  if (typeof fields.inputs === "string") asked = { inputs: fields.inputs, targets: fields.inputs_b ?? "" };
}

async function embed(signal, took) {
  const texts = [$("question").value, $("second").value].filter((text, i) => text || !i);
  const { embeddings } = await call("embed", { inputs: texts }, signal);
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const [a, b] = embeddings;
  const numbers = `(${a.slice(0, 6).map((x) => x.toFixed(3)).join(", ")}, …)`;
  const cosine = b && dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  $("answer").textContent = b ? `cosine similarity ${cosine.toFixed(4)}` : numbers;
  $("facts").textContent = `a vector of ${a.length} numbers, length ${Math.sqrt(dot(a, a)).toFixed(3)} · ${took()}`;
  asked = { inputs: texts[0], targets: "" };
}

// Enter asks, with Shift it begins a line. Escape stops an answer.
for (const area of document.querySelectorAll("textarea")) {
  area.onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || area.id === "second") return;
    event.preventDefault();
    area.form.requestSubmit();
  };
}
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

// The layers.

let seen = null; // what /observe said of `seen.asked`, by `seen.model`
let map = null; // the layer that is shown large: {layer, all: its heads}
let cell = null; // [row, column]

async function observe() {
  if (!asked || (seen?.asked === asked && seen.model === model)) return;
  const now = asked;
  complain("layers-error");
  if (!seen) $("maps").textContent = "…";
  try {
    const found = await call("observe", now);
    if (now !== asked) return;
    seen = { ...found, asked: now, model };
  } catch (error) {
    $("map").hidden = true;
    $("maps").replaceChildren();
    return complain("layers-error", error);
  }
  $("map").hidden = !seen.layers.length;
  const groups = Map.groupBy(seen.layers, ({ rows }) => rows);
  $("maps").replaceChildren(
    ...[...groups].flatMap(([stack, layers]) => {
      const small = element("div", "", { class: "small" });
      small.append(...layers.map(smallMap));
      const first = layers.filter(({ block }) => block === layers[0].block);
      small.style.setProperty("--columns", first.length);
      const title = element("h2", stack[0].toUpperCase() + stack.slice(1));
      return groups.size > 1 ? [title, small] : [small];
    }),
  );
  if (!seen.layers.length) $("maps").textContent = "No layer of this model mixes tokens or attends.";
  else await enlarge(seen.layers.find(({ layer }) => layer === map?.layer.layer) ?? firstMap());
}

// What an answer reads of its question, where there is such a layer.
const firstMap = () => seen.layers.find(({ rows, columns }) => rows !== columns) ?? seen.layers[0];

$("layers").ontoggle = () => $("layers").open && observe();

const words = (text) => text.replaceAll(/[_/]/g, " ");
const title = ({ block, part }) => `${block}: ${words(part)}`;

function smallMap(layer) {
  const button = element("button", "", { type: "button", "aria-pressed": false, "data-layer": layer.layer });
  const canvas = element("canvas");
  button.append(canvas, title(layer));
  button.onclick = () => enlarge(layer);
  fill(canvas, layer.values[0], layer.signed);
  return button;
}

async function enlarge(layer) {
  map = { layer, all: layer.values };
  cell = null;
  for (const button of $("maps").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button.dataset.layer === layer.layer);
  }
  const symbol = layer.kind === "mixing" ? `, ${layer.symbol}` : "";
  $("map-name").textContent = `Block ${title(layer)}${symbol}`;
  const heads = Array.from({ length: layer.heads }, (_, i) => new Option(`Head ${i + 1}`, i));
  $("head").replaceChildren(new Option("Mean of the heads", "mean"), ...heads);
  $("head").hidden = layer.heads < 2;
  drawMap();
}

// The heads of a layer are asked for when one is chosen.
$("head").onchange = async () => {
  const { layer } = map;
  complain("layers-error");
  try {
    if (!layer.each) {
      const found = await call("observe", { ...seen.asked, layer: layer.layer });
      layer.each = found.layers[0].values;
    }
    if (map.layer !== layer) return;
    const head = $("head").value;
    map.all = head === "mean" ? layer.values : [layer.each[head]];
    drawMap();
  } catch (error) {
    complain("layers-error", error);
  }
};

// Colours, from the style sheet: [none, most, least], as red, green and blue.
function colours() {
  const probe = element("i");
  document.body.append(probe);
  const found = ["--none", "--most", "--least"].map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  return found;
}

// Returns the values of a matrix that have the first and the last colour.
function range(rows, signed) {
  const values = rows.flat().filter((x) => x !== null).sort((a, b) => a - b);
  const most = Math.max(-values[0], values.at(-1)) || 1;
  return signed ? [-most, most] : [values[0], values[Math.floor(0.995 * (values.length - 1))]];
}

// One pixel of a canvas for each value.
function fill(canvas, rows, signed) {
  const [none, most, least] = colours();
  const [low, high] = range(rows, signed);
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((x, i) => {
    const share = signed ? Math.abs(x) / high : (x - low) / (high - low || 1);
    const part = Math.min(1, share), end = x < 0 ? least : most;
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = none[k] + part * (end[k] - none[k]);
    image.data[4 * i + 3] = x === null ? 0 : 255;
  });
  context.putImageData(image, 0, 0);
}

const names = () => {
  const { rows, columns } = map.layer;
  return [seen.tokens[rows].writes, seen.tokens[columns].reads];
};

let place = null; // of the large matrix: {left, top, side}

function drawMap() {
  if (!map || $("map").hidden) return;
  const canvas = $("matrix"), rows = map.all[0], [down, across] = names();
  const style = getComputedStyle(document.body), ratio = devicePixelRatio || 1;
  const width = $("map").clientWidth, font = `12px ${style.fontFamily}`;
  const context = canvas.getContext("2d");
  context.font = `600 ${font}`; // as wide as they get
  const size = (texts) => Math.min(110, 10 + Math.max(...texts.map((x) => context.measureText(x).width)));
  const left = size(down), top = size(across);
  const side = Math.min(36, (width - left - 1) / rows[0].length, 620 / rows.length);
  place = { left, top, side };
  const shown = [left + side * rows[0].length + 1, top + side * rows.length + 1];
  [canvas.width, canvas.height] = shown.map((x) => Math.round(x * ratio));
  [canvas.style.width, canvas.style.height] = shown.map((x) => `${x}px`);
  context.scale(ratio, ratio);
  const pixels = document.createElement("canvas");
  fill(pixels, rows, map.layer.signed);
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels, left, top, side * rows[0].length, side * rows.length);

  context.font = font;
  context.textBaseline = "middle";
  const step = Math.ceil(13 / side); // Every so many tokens have room for their names.
  const label = (text, i, most) => {
    const on = cell && cell[most] === i;
    if (i % step && !on) return;
    if (cell && !on && step > 1 && Math.abs(cell[most] - i) < step) return;
    context.fillStyle = style.color;
    context.globalAlpha = !cell || on ? 1 : 0.6;
    context.font = on ? `600 ${font}` : font;
    context.fillText(text, 0, 0, 104);
  };
  down.forEach((text, i) => {
    context.save();
    context.textAlign = "right";
    context.translate(left - 6, top + side * (i + 0.5));
    label(text, i, 0);
    context.restore();
  });
  across.forEach((text, i) => {
    context.save();
    context.translate(left + side * (i + 0.5), top - 6);
    context.rotate(-Math.PI / 2);
    label(text, i, 1);
    context.restore();
  });
  if (cell) {
    context.strokeStyle = style.color;
    context.lineWidth = 2;
    context.strokeRect(left + side * cell[1], top + side * cell[0], side, side);
  }
  const [low, high] = range(rows, map.layer.signed), short = (x) => Number(x.toPrecision(3));
  $("low").textContent = short(low);
  $("high").textContent = rows.flat().some((x) => x > high) ? `${short(high)} and more` : short(high);
  $("scale").classList.toggle("signed", map.layer.signed);
  const many = `${rows.length} by ${rows[0].length}`;
  canvas.setAttribute("aria-label", `Matrix, ${many}; arrow keys go from value to value`);
  describeCell();
}

function describeCell() {
  if (!cell) {
    $("cell").textContent = "A row is a token that is computed, a column a token that it reads.";
    return;
  }
  const [row, column] = cell, [down, across] = names(), value = map.all[0][row][column];
  const shown = value === null ? "none" : value.toFixed(4);
  $("cell").textContent = `“${down[row] ?? row}” reads “${across[column] ?? column}”: ${shown}`;
}

function chooseCell(row, column) {
  const rows = map.all[0];
  const inside = (x, most) => Math.max(0, Math.min(x, most - 1));
  cell = [inside(row, rows.length), inside(column, rows[0].length)];
  drawMap();
}

$("matrix").onkeydown = (event) => {
  const [row, column] = cell ?? [0, 0], first = !cell;
  const to = {
    ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
    Home: [row, 0], End: [row, Infinity],
  };
  if (!(event.key in to)) return;
  event.preventDefault();
  chooseCell(...(first ? [0, 0] : to[event.key]));
};

$("matrix").onpointermove = (event) => {
  const row = Math.floor((event.offsetY - place.top) / place.side);
  const column = Math.floor((event.offsetX - place.left) / place.side);
  if (row >= 0 && column >= 0) chooseCell(row, column);
};
$("matrix").onpointerdown = $("matrix").onpointermove;
$("matrix").onblur = () => {
  cell = null;
  drawMap();
};
$("matrix").onpointerleave = (event) => {
  if (document.activeElement !== event.target) $("matrix").onblur();
};

new ResizeObserver(drawMap).observe($("view"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const button of $("maps").querySelectorAll("button")) {
    const layer = seen.layers.find((x) => x.layer === button.dataset.layer);
    fill(button.querySelector("canvas"), layer.values[0], layer.signed);
  }
  drawMap();
});

loadModels();
