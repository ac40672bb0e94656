// Runs JavaScript and TypeScript received over descriptor 4, and reports results over descriptor 3.
//
// V8's inspector evaluates each piece of code as a console does: variables live on and may be
// declared again, `await` stands anywhere, and the last expression has a value. The runner has the
// rights of the code it runs, so the supervisor trusts none of its reports. It needs only modules
// that Deno and Node share.

import { Buffer } from "node:buffer";
import fs from "node:fs";
import inspector from "node:inspector";
import module from "node:module";
import process from "node:process";
import { pathToFileURL } from "node:url";
import util from "node:util";

import { Channel } from "./channel.mjs";
import { cleanStackTraces, describe, describeError, plain, renew, text, wasCut } from "./show.mjs";
import { IMPORTER, isModule, withoutImports, withoutTypes } from "./source.mjs";
import { makeTools } from "./tools.mjs";

const WORKSPACE = "/workspace";
const INTERRUPTED = 130;
const TAKER = Symbol.for("cellwall.taker");
const session = new inspector.Session();
session.connect();
// Only the runner may have a connection: in Deno this permission ends here.
globalThis.Deno?.permissions.revokeSync({ name: "sys", kind: "inspector" });
const reallyExit = globalThis.Deno?.exit ?? process.reallyExit.bind(process);
const isPromise = util.types.isPromise;
const nextTurn = setImmediate;

let isEvaluating = false;

function exitInterpreter(code) {
  if (isEvaluating) throw new Exit(code, true); // Deno cannot end within an evaluation
  session.disconnect(); // an answer to a pending evaluation would find no interpreter
  reallyExit(code);
}

// Thrown by `process.exit` in code: the piece of code ends, and the interpreter only if `isFinal`.
class Exit {
  constructor(code, isFinal = false) {
    this.code = code;
    this.isFinal = isFinal;
  }
}

class Interrupted extends Error {
  name = "Interrupted";
}

class CodeSession {
  #channel = new Channel((message, blob) => this.#handle(message, blob), () => exitInterpreter(0));
  #tools;
  #shown = [];
  #isRunning = false;
  #isOnce = false;
  #awaited = new WeakSet();
  #taken;
  #box; // the inspector's handle of the function that takes values

  async prepare() {
    globalThis[TAKER] = (value) => {
      this.#taken = value;
    };
    const { result } = await post("Runtime.evaluate", {
      expression: 'globalThis[Symbol.for("cellwall.taker")]',
    });
    this.#box = result.objectId;
    delete globalThis[TAKER];
    const hidden = (name, value) =>
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
    const main = { exports: {}, id: ".", filename: `${WORKSPACE}/main.js`, loaded: false };
    const require = module.createRequire(`${WORKSPACE}/main.js`);
    require.main = main; // `if (require.main === module)` is true, as in a program
    hidden("require", require);
    hidden("module", main);
    hidden("exports", main.exports);
    hidden("__filename", main.filename);
    hidden("__dirname", WORKSPACE);
    hidden(IMPORTER, importFor(require));
    hidden("display", (...values) => void this.#shown.push(...values));
    process.exit = (code) => {
      throw new Exit(Number(code ?? process.exitCode ?? 0) & 0xff);
    };
    if (globalThis.Deno) globalThis.Deno.exit = process.exit;
    process.reallyExit = exitInterpreter;
    process.on("SIGINT", () => this.#interrupt());
    process.on("uncaughtException", (error) => this.#catch(error));
    process.on("unhandledRejection", (error, promise) => {
      // The value of the last expression is awaited a moment later.
      nextTurn(() => this.#awaited.has(promise) || this.#catch(error));
    });
  }

  #handle(message, blob) {
    if ("answer" in message) this.#tools?.settle(message);
    else if ("code" in message) void this.#serve(message, blob);
  }

  async #serve(message, blob) {
    try {
      await this.#run(message, blob);
    } catch { // code broke what the runner stands on, such as `Promise.prototype.then`
      exitInterpreter(1);
    }
  }

  // Between two pieces of code there is nothing to interrupt. Pending promises cannot be cancelled:
  // the code would go on, so the interpreter ends.
  #interrupt() {
    if (!this.#isRunning) return;
    fs.writeSync(2, "Interrupted: the interpreter of this code was ended\n");
    exitInterpreter(INTERRUPTED);
  }

  // An exception in a callback, or a rejected promise that nothing awaits. After `process.exit` in a
  // callback the code that still waits would go on, so the interpreter ends.
  #catch(error) {
    if (error instanceof Exit) exitInterpreter(error.code);
    fs.writeSync(2, describeError(error).traceback);
    if (this.#isOnce) this.#channel.close(() => exitInterpreter(1));
  }

  async #run(request, blob) {
    this.#isRunning = true;
    this.#isOnce = request.once === true;
    renew();
    const given = Object.entries(request.env ?? {});
    const before = given.map(([name]) => [name, process.env[name]]);
    for (const [name, value] of given) process.env[name] = value;
    if (request.tools?.length > 0) {
      this.#tools ??= makeTools((call) => this.#channel.write(call), request.tools);
      globalThis.tools = this.#tools.functions;
    }
    const report = { done: request.code, exit: 0 };
    process.exitCode = undefined;
    try {
      await this.#execute(request, blob.toString("utf8"), report);
      report.exit = Number(process.exitCode ?? 0) & 0xff;
    } catch (error) {
      const exit = error.thrown ?? error;
      if (exit instanceof Exit) {
        if (exit.isFinal) exitInterpreter(exit.code);
        report.exit = exit.code;
      } else {
        report.exit = 1;
        report.error = describeError(error.thrown ?? error, error.place);
        fs.writeSync(2, report.error.traceback);
      }
    }
    await this.#finish(report);
    if (this.#isOnce) return this.#end(report.exit);
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    this.#isRunning = false;
  }

  async #finish(report) {
    await new Promise((resolve) => nextTurn(resolve)); // rejections that nothing awaits are told now
    await new Promise((resolve) => nextTurn(resolve));
    report.results = [];
    for (const value of this.#shown.splice(0)) report.results.push(await describe(value));
    if (wasCut()) report.cut = 1;
    this.#channel.write(report);
    await post("Runtime.releaseObjectGroup", { objectGroup: "run" });
  }

  // A program ends when its last timer and connection have ended.
  #end(code) {
    process.removeAllListeners("SIGINT");
    process.exitCode = code;
    session.disconnect();
    this.#channel.close();
  }

  async #execute(request, source, report) {
    const name = `<code-${request.code}>`;
    const script = request.language === "typescript" ? withoutTypes(source) : source;
    let value;
    try {
      value = await this.#evaluate(withoutImports(script), name, request.wall_ms);
    } catch (error) {
      if (!isModule(error.thrown)) throw error;
      return void await importText(source, request);
    }
    if (isPromise(value)) {
      this.#awaited.add(value);
      value = await value;
    }
    if (value === undefined) return;
    const [isPlain, form] = plain(value);
    report.value = isPlain ? form : null;
    report.text = text(value);
    const forms = await describe(value);
    if (Object.keys(forms).length > 1) this.#shown.push(value);
  }

  async #evaluate(script, name, wallMs) {
    let answer;
    try {
      answer = await post("Runtime.evaluate", {
        expression: `${script}\n//# sourceURL=${name}`,
        replMode: true,
        awaitPromise: true,
        objectGroup: "run",
        timeout: wallMs, // V8 ends the code, and the variables stay
      });
    } catch (error) {
      if (!/collected/.test(error.message)) throw new Interrupted("the time limit was reached");
      answer = await new Promise(() => {}); // the code awaits a promise that nothing can settle
    }
    const details = answer.exceptionDetails;
    const found = details === undefined ? answer.result : details.exception ?? answer.result;
    const value = await this.#take(found);
    if (details === undefined) return value;
    throw { thrown: value, place: value instanceof SyntaxError ? placeOf(script, name, details) : "" };
  }

  // The value itself, which the inspector only describes.
  async #take(found) {
    if (found.type === "undefined") return undefined;
    await post("Runtime.callFunctionOn", {
      objectId: this.#box,
      functionDeclaration: "function (value) { this(value) }",
      arguments: [found.objectId === undefined ? plainArgument(found) : { objectId: found.objectId }],
    });
    const value = this.#taken;
    this.#taken = undefined;
    return value;
  }
}

const plainArgument = ({ unserializableValue, value }) =>
  unserializableValue === undefined ? { value } : { unserializableValue };

function post(method, parameters) {
  return new Promise((resolve, reject) => {
    isEvaluating = true;
    session.post(method, parameters, (error, answer) => error ? reject(error) : resolve(answer));
    isEvaluating = false;
  });
}

// Where a SyntaxError is, which only the inspector tells.
function placeOf(script, name, { lineNumber, columnNumber }) {
  const line = script.split("\n")[lineNumber] ?? "";
  if (line.length > 200) return `${name}:${lineNumber + 1}:${columnNumber + 1}\n`;
  return `${name}:${lineNumber + 1}\n${line}\n${" ".repeat(columnNumber)}^\n`;
}

// `import` for code that is no file: paths begin in the current directory, packages in the workspace.
function importFor(require) {
  return (name, options) => {
    if (/^\.{0,2}\//.test(name)) return import(pathToFileURL(name).href, options);
    if (module.isBuiltin(name)) return import(name.replace(/^(?!node:)/, "node:"), options);
    try {
      return import(pathToFileURL(require.resolve(name)).href, options);
    } catch {
      return import(name, options);
    }
  };
}

// Code that exports, or imports in its middle: a module of its own, without a value.
async function importText(source, { code, language }) {
  const ending = language === "typescript" ? "mts" : "mjs";
  const folder = fs.mkdtempSync("/tmp/.cellwall-");
  const path = `${folder}/code-${code}.${ending}`;
  fs.writeFileSync(path, source);
  try {
    await import(pathToFileURL(path).href);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

cleanStackTraces();
await new CodeSession().prepare();
