/** Requests with the token, and answers as values or as `CellwallError`. */

import createClient, { type Client } from "openapi-fetch";

import { CellwallError, refusal, unreachable } from "./errors.js";
import type { paths } from "./schema.js";

/** Every route of the service, typed by its OpenAPI document. */
export type Api = Client<paths>;

export interface ClientOptions {
  /** The address of the service, such as `https://cellwall.example.com`. */
  url: string;
  /** An access token or a service token (`cellwall token create`). */
  token: string;
}

export interface RequestOptions {
  /** Ends the request, and with it a run that is not streamed. */
  signal?: AbortSignal;
}

export function openApi({ url, token }: ClientOptions): Api {
  if (!/^https?:\/\//.test(url) || !token) {
    throw new CellwallError({
      code: "CW-BAD-INPUT",
      message: "the client needs the URL of a service and a token",
      hint: "Give {url: 'http://127.0.0.1:8000', token: '…'}.",
    });
  }
  const api = createClient<paths>({
    baseUrl: url,
    headers: { Authorization: `Bearer ${token}` },
    redirect: "error", // the service sends none, and the token is for the service alone
  });
  api.use({
    onError: ({ error }) => (isAbort(error) ? undefined : unreachable(error)),
  });
  return api;
}

interface Answer<Data> {
  data?: Data;
  error?: unknown;
  response: Response;
}

/** The body of an answer; a refusal is thrown. */
export async function received<Data>(answer: Promise<Answer<Data>>): Promise<Data> {
  const { data, error, response } = await answer;
  if (!response.ok) throw refusal(response, error);
  return data as Data;
}

/** An id in an address: `..` would name another route. */
export function checkedId(id: string): string {
  if (/^[a-z]+_[0-9a-z]+$/.test(id)) return id;
  throw new CellwallError({
    code: "CW-BAD-INPUT",
    message: "this is not the id of a sandbox or snapshot",
    hint: "Ids are such as sbx_0123456789abcdefghjkmnpqrs.",
  });
}

export function isAbort(error: unknown): boolean {
  return error instanceof Error && (error.name === "AbortError" || error.name === "TimeoutError");
}
