// Answers by an ONNX export of remixer_tf. All is computed in this page.

const LIBRARY = "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
const FOLDER = "./model/"; // a copy of the export's folder
const READY = "The model is loaded. It runs in this page.";

// Texts to ids and back, as the run's vocabulary does it.

const bytes = {
  encode: (text) => Array.from(new TextEncoder().encode(text), (byte) => byte + 3),
  decode: (ids) => {
    const found = ids.filter((id) => id >= 3 && id < 259).map((id) => id - 3);
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return decoder.decode(Uint8Array.from(found)).replaceAll("\ufffd", "");
  },
};

// A word has its own id. A SentencePiece file of words is a message of protobuf: field
// 1 is a word (1: its text, 3: its kind), field 2 has the kind of the vocabulary (3).
function words(file) {
  const pieces = [], utf8 = new TextDecoder();
  let unknown, kind;
  for (const [field, value] of fields(file)) {
    if (field === 1) {
      const piece = Object.fromEntries(fields(value));
      if (piece[3] === 2) unknown = pieces.length;
      pieces.push(piece[3] ? "" : utf8.decode(piece[1])); // "": of no text, as EOS
    }
    if (field === 2) kind = Object.fromEntries(fields(value))[3];
  }
  if (kind !== 3) throw Error("The vocabulary has pieces of words, not words.");
  pieces[unknown] = " \u2047 ";
  const ids = new Map(pieces.map((piece, id) => [piece, id]));
  return {
    encode: (text) => text.normalize("NFKC").split(/[\s\u2581]+/).filter(Boolean)
      .map((word) => ids.get("\u2581" + word) ?? unknown)
      .filter((id, i, all) => id !== unknown || id !== all[i - 1]), // unknown ones: one
    decode: (found) => found.map((id) => pieces[id] ?? pieces[unknown]).join("")
      .replaceAll("\u2581", " ").replace(/^ /, ""),
  };
}

// Yields the number and the value of each field of a message: a number, or bytes.
function* fields(message) {
  let at = 0;
  function number() {
    let value = 0, unit = 1, byte;
    do {
      byte = message[at++];
      value += (byte & 127) * unit;
      unit *= 128;
    } while (byte > 127);
    return value;
  }
  while (at < message.length) {
    const key = number(), wire = key & 7;
    if (wire === 0) yield [key >> 3, number()];
    else {
      const size = { 1: 8, 2: 0, 5: 4 }[wire] || number();
      yield [key >> 3, message.subarray(at, at + size)];
      at += size;
    }
  }
}

async function read(path) {
  const response = await fetch(FOLDER + path);
  if (!response.ok) throw Error(`There is no ${FOLDER}${path}: export a run first.`);
  return new Uint8Array(await response.arrayBuffer());
}

async function vocabulary({ kind, file }) {
  if (kind === "ByteVocabulary") return bytes;
  if (kind === "SentencePiece") return words(await read(file));
  throw Error(`This page has no vocabulary of the kind ${kind}.`);
}

// Returns a function from a text to an answer.
async function load() {
  const about = JSON.parse(new TextDecoder().decode(await read("model.json")));
  const inputs = await vocabulary(about.vocabularies.inputs);
  const targets = await vocabulary(about.vocabularies.targets);
  const ort = await import(LIBRARY).catch(() => {
    throw Error("onnxruntime-web is missing: run npm install first.");
  });
  ort.env.wasm.numThreads = 1; // More need headers that http.server does not send.
  const session = await ort.InferenceSession.create(await read(about.file));

  return async (text) => {
    const ids = inputs.encode(text);
    if (about.inputs_end_with_eos) ids.push(about.eos_id);
    const length = about.max_input_length;
    if (ids.length > length) {
      throw Error(`The text has ${ids.length} tokens, and the model reads ${length}.`);
    }
    const row = new Int32Array(length);
    row.set(ids);
    const tensor = new ort.Tensor("int32", row, [1, length]);
    const { outputs, scores } = await session.run({ inputs: tensor });
    const answer = Array.from(outputs.data), end = answer.indexOf(about.eos_id);
    return {
      text: targets.decode(end < 0 ? answer : answer.slice(0, end)),
      probability: Math.exp(scores.data[0]),
    };
  };
}

const status = document.querySelector("#status");
const form = document.querySelector("form");
const answers = document.querySelector("#answers");
const template = document.querySelector("template");

function show(question, answer, milliseconds) {
  const item = template.content.cloneNode(true);
  const probability = (100 * answer.probability).toFixed(1);
  const note = `probability ${probability}%, ${milliseconds.toFixed(0)} ms`;
  item.querySelector(".question").textContent = question;
  item.querySelector(".answer").textContent = answer.text;
  item.querySelector(".note").textContent = note;
  answers.prepend(item);
}

function say(text, wrong) {
  status.textContent = text;
  status.classList.toggle("error", wrong);
}

try {
  const answer = await load();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const question = form.question.value, start = performance.now();
    form.question.select();
    try {
      show(question, await answer(question), performance.now() - start);
      say(READY, false);
    } catch (error) {
      say(error.message, true);
    }
  });
  form.fields.disabled = false;
  form.question.focus();
  say(READY, false);
} catch (error) {
  say(error.message, true);
}
