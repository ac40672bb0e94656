/** One sandbox: runs, files, snapshots, its end. */

import { readEvents, type Outcome, type RunEvent } from "./events.js";
import { refusal, unreachable } from "./errors.js";
import { Files } from "./files.js";
import type { components } from "./schema.js";
import { received, type Api, type RequestOptions } from "./transport.js";

type Schemas = components["schemas"];
export type Session = Schemas["Session"];
export type Snapshot = Schemas["SnapshotBody"];
export type CodeOptions = Omit<Schemas["CodeRequest"], "code"> & RequestOptions;
export type CommandOptions = Omit<Schemas["CommandRequest"], "command"> & RequestOptions;
export type SnapshotOptions = Schemas["NewSnapshot"];
export type ForkOptions = Omit<Schemas["ForkRequest"], "count">;

const CODE = "/v1/sessions/{session_id}/code";
const COMMANDS = "/v1/sessions/{session_id}/commands";
const EVENTS = { headers: { Accept: "text/event-stream" }, parseAs: "stream" } as const;

/** Programs in a sandbox. A refusal by a rule is an outcome with the status `denied`. */
export class Commands {
  readonly #api: Api;
  readonly #params: { path: { session_id: string } };

  constructor(api: Api, id: string) {
    this.#api = api;
    this.#params = { path: { session_id: id } };
  }

  /** A text is for the shell; a list is a program and its arguments. */
  async run(command: string | string[], { signal, ...options }: CommandOptions = {}): Promise<Outcome> {
    const body = { ...options, command };
    return ran(this.#api.POST(COMMANDS, { params: this.#params, body, ...abortable(signal) }));
  }

  /** The same, with the output as it is written. */
  async *stream(command: string | string[], { signal, ...options }: CommandOptions = {}): AsyncGenerator<RunEvent> {
    const body = { ...options, command };
    yield* followed(await this.#api.POST(COMMANDS, { params: this.#params, body, ...EVENTS, ...abortable(signal) }));
  }
}

/** Made by `sandboxes.create` and `sandboxes.connect`. */
export class Sandbox {
  readonly id: string;
  readonly commands: Commands;
  readonly files: Files;
  readonly #api: Api;
  readonly #params: { path: { session_id: string } };

  constructor(api: Api, id: string) {
    this.id = id;
    this.commands = new Commands(api, id);
    this.files = new Files(api, id);
    this.#api = api;
    this.#params = { path: { session_id: id } };
  }

  /** Runs code in the live interpreter; variables stay. */
  async runCode(code: string, { signal, ...options }: CodeOptions = {}): Promise<Outcome> {
    const body = { ...options, code };
    return ran(this.#api.POST(CODE, { params: this.#params, body, ...abortable(signal) }));
  }

  /** The same, with output and results as they come. */
  async *streamCode(code: string, { signal, ...options }: CodeOptions = {}): AsyncGenerator<RunEvent> {
    const body = { ...options, code };
    yield* followed(await this.#api.POST(CODE, { params: this.#params, body, ...EVENTS, ...abortable(signal) }));
  }

  async info(): Promise<Session> {
    return received(this.#api.GET("/v1/sessions/{session_id}", { params: this.#params }));
  }

  /** Keeps the files, packages and plain variables; `sandboxes.create({from_snapshot: id})` begins with them. */
  async snapshot(body: SnapshotOptions = {}): Promise<Snapshot> {
    return received(this.#api.POST("/v1/sessions/{session_id}/snapshots", { params: this.#params, body }));
  }

  /** New sandboxes with the files of this one; all of them or none. */
  async fork(count = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const body = { ...options, count };
    const made = await received(this.#api.POST("/v1/sessions/{session_id}/fork", { params: this.#params, body }));
    return made.sessions.map((session) => new Sandbox(this.#api, session.id));
  }

  /** Ends the sandbox and all that runs in it. */
  async kill(): Promise<void> {
    await received(this.#api.DELETE("/v1/sessions/{session_id}", { params: this.#params }));
  }
}

/** openapi-fetch takes a signal or no such field, but not `undefined`. */
function abortable(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}

/** Without `Accept: text/event-stream` the answer is the outcome. */
async function ran(answer: Promise<{ data?: Outcome | string; response: Response }>): Promise<Outcome> {
  return (await received(answer)) as Outcome;
}

interface Streamed {
  data?: ReadableStream<Uint8Array> | null;
  error?: unknown;
  response: Response;
}

function followed({ data, error, response }: Streamed): AsyncGenerator<RunEvent> {
  if (!response.ok) throw refusal(response, error);
  if (!data) throw unreachable(new Error("the answer has no body"));
  return readEvents(data);
}
