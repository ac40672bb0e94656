/** The one error class of the client. */

import type { components } from "./schema.js";

type ErrorBody = components["schemas"]["ErrorBody"];

export interface ErrorFields {
  code: string;
  message: string;
  hint: string;
  auditId?: string;
  status?: number;
  retryAfterS?: number;
  cause?: unknown;
}

/** What the service refused, or why it gave no answer. */
export class CellwallError extends Error {
  override readonly name = "CellwallError";
  /** Such as `CW-NOT-FOUND`; the documentation lists all codes. */
  readonly code: string;
  readonly hint: string;
  /** The record of the refusal, or "". */
  readonly auditId: string;
  /** The HTTP status; 0 where the service gave no answer. */
  readonly status: number;
  /** When to try again, for 429 and 503. */
  readonly retryAfterS: number | undefined;

  constructor(fields: ErrorFields) {
    super(fields.message, { cause: fields.cause });
    this.code = fields.code;
    this.hint = fields.hint;
    this.auditId = fields.auditId ?? "";
    this.status = fields.status ?? 0;
    this.retryAfterS = fields.retryAfterS;
  }
}

/** The error of an answer with a status of 400 or more. `body` is its JSON, or its text. */
export function refusal(response: Response, body: unknown): CellwallError {
  const seconds = Number(response.headers.get("retry-after") ?? NaN);
  const retryAfterS = Number.isFinite(seconds) ? { retryAfterS: seconds } : {};
  const error = errorOf(body);
  if (error === undefined) {
    // A proxy before the service answered, or the address is that of another server.
    return new CellwallError({
      code: "CW-BAD-ANSWER",
      message: `the answer has the status ${response.status} and is not Cellwall's`,
      hint: "Check the URL, and the proxies before the service.",
      status: response.status,
      ...retryAfterS,
    });
  }
  const { code, message, hint, audit_id: auditId } = error;
  return new CellwallError({ code, message, hint, auditId, status: response.status, ...retryAfterS });
}

export function unreachable(cause: unknown): CellwallError {
  return new CellwallError({
    code: "CW-UNREACHABLE",
    message: "the service gave no complete answer",
    hint: "Check that the service runs at this URL; the cause has the details.",
    cause,
  });
}

function errorOf(body: unknown): ErrorBody | undefined {
  if (typeof body !== "object" || body === null || !("error" in body)) return undefined;
  const { error } = body;
  const isError = typeof error === "object" && error !== null && "code" in error && "message" in error;
  return isError ? (error as ErrorBody) : undefined;
}
