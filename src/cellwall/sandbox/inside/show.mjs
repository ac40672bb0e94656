// The representation of a value or an error for the caller, as in show.py (LANG-2).
//
// This module has the rights of the code it runs beside, so nothing it returns is trusted outside. A
// value belongs to the code, and any of its methods may throw: each is called by `attempt`.

import { Buffer } from "node:buffer";
import util from "node:util";

const MAX_TEXT_BYTES = 64 * 1024;
const MAX_FORM_BYTES = 5_000_000;
const MAX_DEPTH = 64;
const MAX_ENTRIES = 100_000;
const MAX_STRINGS = 16_000; // of a run, keys included; the supervisor takes 20,000 in a report
const MAX_ARRAY_ENTRIES = 10_000;
const CUT = "\n[... cut by Cellwall ...]\n";
const DISPLAY = Symbol.for("Jupyter.display"); // as in Deno's notebooks

const FORMS = [
  ["html", "text/html"],
  ["markdown", "text/markdown"],
  ["svg", "image/svg+xml"],
  ["png", "image/png"],
  ["jpeg", "image/jpeg"],
  ["pdf", "application/pdf"],
  ["latex", "text/latex"],
  ["json", "application/json"],
  ["javascript", "application/javascript"],
];
const MAX_CAUSES = 8;
const MAX_FRAMES = 50;
const INTERNAL = /^(?:node|ext):/;
const OWN = new URL(".", import.meta.url).href;
const INSPECTOR = /^(?:node:inspector|ext:deno_node\/inspector)/;

const { inspect, types } = util;
const { stringify } = JSON;
const { isArray } = Array;
const { keys } = Object;

let stringsLeft = MAX_STRINGS;
let isCut = false;

export function renew() {
  stringsLeft = MAX_STRINGS;
  isCut = false;
}

export const wasCut = () => isCut;

function fits(size, most) {
  isCut ||= size > most;
  return size <= most;
}

function attempt(call) {
  try {
    return call();
  } catch {
    return undefined;
  }
}

export function text(value) {
  const shown = attempt(() => inspect(value, { depth: 6, maxStringLength: MAX_TEXT_BYTES }));
  return typeof shown === "string" ? clip(shown) : "<value that cannot be shown>";
}

// The forms of a value: `text` always, others if the value offers them.
export async function describe(value) {
  const forms = { text: text(value) };
  let bundle;
  try {
    if (typeof value?.[DISPLAY] === "function") bundle = await value[DISPLAY]();
  } catch {
    return forms;
  }
  if (bundle === null || typeof bundle !== "object") return forms;
  for (const [key, mime] of FORMS) {
    const data = attempt(() => bundle[mime]);
    if (data === undefined) continue;
    const [isPlain, form] = key === "json" ? plain(data) : [typeof data === "string", data];
    if (isPlain && fits(Buffer.byteLength(stringify(form)), MAX_FORM_BYTES)) forms[key] = form;
  }
  return forms;
}

class NotPlain extends Error {}

// Whether a value has a JSON form, and that form.
export function plain(value) {
  const walk = { entries: MAX_ENTRIES, bytes: MAX_FORM_BYTES, path: new Set() };
  try {
    return [true, form(value, walk)];
  } catch { // reading runs the code's own getters
    return [false, null];
  }
}

function form(value, walk) {
  walk.entries -= 1;
  if (!fits(walk.path.size, MAX_DEPTH) || !fits(0, walk.entries)) throw new NotPlain();
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "number" && Number.isFinite(value)) return value;
  if (typeof value === "string") return spend(value, walk);
  if (typeof value !== "object" || walk.path.has(value) || !hasFields(value)) throw new NotPlain();
  walk.path.add(value);
  try {
    if (typeof value.toJSON === "function") return form(value.toJSON(), walk);
    if (isArray(value)) return value.map((each) => form(each ?? null, walk));
    if (types.isTypedArray(value)) {
      if (!fits(value.length, MAX_ARRAY_ENTRIES)) throw new NotPlain();
      return [...value].map((each) => form(each, walk));
    }
    const fields = {};
    for (const key of keys(value)) {
      const field = value[key];
      if (field === undefined || typeof field === "function") continue; // as JSON does
      Object.defineProperty(fields, spend(key, walk), {
        value: form(field, walk),
        enumerable: true, // a definition, since `fields.__proto__ = …` would be none
      });
    }
    return fields;
  } finally {
    walk.path.delete(value);
  }
}

// Values whose content is not in their own fields would look empty.
function hasFields(value) {
  return !(types.isProxy(value) || types.isMap(value) || types.isSet(value) ||
    types.isRegExp(value) || types.isPromise(value) || types.isNativeError(value) ||
    types.isAnyArrayBuffer(value) || types.isWeakMap(value) || types.isWeakSet(value));
}

function spend(string, walk) {
  walk.bytes -= string.length;
  stringsLeft -= 1;
  if (!fits(0, walk.bytes) || !fits(0, stringsLeft)) throw new NotPlain();
  return string;
}

// Stack traces, also those that the code prints itself, without the frames of the interpreter. The
// frames of the runner are below all frames of the code.
export function cleanStackTraces() {
  Error.stackTraceLimit = MAX_FRAMES;
  Error.prepareStackTrace = (error, sites) => {
    let trace = `${textOf(() => error.name) || "Error"}: ${textOf(() => error.message)}`;
    for (const site of sites) {
      const name = site.getScriptNameOrSourceURL() ?? "";
      if (name.startsWith(OWN) || INSPECTOR.test(name)) break;
      if (!INTERNAL.test(name)) trace += `\n    at ${site}`;
    }
    return trace;
  };
}

// Type, message and traceback. `place`: a position that V8 knows and a SyntaxError does not.
export function describeError(error, place = "", causes = MAX_CAUSES) {
  if (!types.isNativeError(error) && attempt(() => error instanceof Error) !== true) {
    const shown = text(error);
    const type = textOf(() => error.constructor.name) || typeof error;
    return { type, message: shown, traceback: ends(`${place}Uncaught ${shown}\n`) };
  }
  const type = textOf(() => error.name) || "Error";
  const message = textOf(() => error.message);
  const stack = textOf(() => error.stack) || `${type}: ${message}`;
  const cause = causes > 0 ? attempt(() => error.cause) : undefined; // a chain may be a circle
  const because = cause === undefined
    ? ""
    : describeError(cause, "Caused by: ", causes - 1).traceback;
  return { type, message, traceback: ends(`${place}${stack}\n${because}`) };
}

function textOf(read) {
  const found = attempt(() => String(read()));
  return found === undefined ? "" : clip(found);
}

function clip(string) {
  const data = Buffer.from(string, "utf8");
  if (fits(data.length, MAX_TEXT_BYTES)) return string;
  return data.toString("utf8", 0, MAX_TEXT_BYTES);
}

// The beginning and end of a long text.
function ends(string) {
  const data = Buffer.from(string, "utf8");
  if (fits(data.length, MAX_TEXT_BYTES)) return string;
  const half = (MAX_TEXT_BYTES - CUT.length) / 2;
  return data.toString("utf8", 0, half) + CUT + data.toString("utf8", data.length - half);
}
