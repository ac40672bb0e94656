/** The server-sent events of a run, as they come. */

import { CellwallError, unreachable } from "./errors.js";
import type { components } from "./schema.js";
import { isAbort } from "./transport.js";

export type Outcome = components["schemas"]["OutcomeBody"];

/** One piece of output, one result, or the outcome, which is the last. */
export type RunEvent =
  | { name: "stdout" | "stderr"; text: string }
  | { name: "result"; result: unknown }
  | { name: "outcome"; outcome: Outcome };

/** Leaving the loop early closes the connection; the run itself goes on. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<RunEvent, void, undefined> {
  for await (const block of blocks(body)) {
    const event = parsed(block);
    if (event === undefined) continue; // a comment, which keeps the connection open
    yield event;
    if (event.name === "outcome") return;
  }
  throw unreachable(new Error("the events ended before the outcome"));
}

async function* blocks(body: ReadableStream<Uint8Array>): AsyncGenerator<string, void, undefined> {
  const decoder = new TextDecoder();
  let text = "";
  try {
    for await (const chunk of body) {
      text += decoder.decode(chunk, { stream: true });
      const complete = text.split("\n\n");
      text = complete.pop() ?? "";
      yield* complete;
    }
  } catch (error) {
    throw isAbort(error) ? error : unreachable(error);
  }
}

function parsed(block: string): RunEvent | undefined {
  const fields = new Map<string, string>();
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields.set(line.slice(0, colon), line.slice(colon + 2));
  }
  const [name, text] = [fields.get("event"), fields.get("data")];
  if (text === undefined) return undefined;
  const data = JSON.parse(text);
  switch (name) {
    case "stdout":
    case "stderr":
      return { name, text: data.text };
    case "result":
      return { name, result: data };
    case "outcome":
      return { name, outcome: data };
    case "error": {
      const { code, message, hint, audit_id: auditId } = data;
      throw new CellwallError({ code, message, hint, auditId, status: 200 });
    }
    default:
      return undefined; // of a newer service
  }
}
