/** Files of a sandbox. */

import type { components } from "./schema.js";
import { received, type Api } from "./transport.js";

export type Entry = components["schemas"]["Entry"];

const PATH = "/v1/sessions/{session_id}/files/{path}";

/** Paths are relative to `/workspace`, or absolute, such as `/tmp/a.txt`. */
export class Files {
  readonly #api: Api;
  readonly #id: string;

  constructor(api: Api, id: string) {
    this.#api = api;
    this.#id = id;
  }

  /** The file as text; bytes that are not UTF-8 are replaced. */
  async read(path: string): Promise<string> {
    return new TextDecoder().decode(await this.readBytes(path));
  }

  async readBytes(path: string): Promise<Uint8Array> {
    const params = this.#params(path);
    return new Uint8Array(await received(this.#api.GET(PATH, { params, parseAs: "arrayBuffer" })));
  }

  /** Replaces the file when all of it has arrived; directories above it are made. */
  async write(path: string, content: string | Uint8Array | Blob): Promise<void> {
    const answer = this.#api.PUT(PATH, {
      params: this.#params(path),
      body: content as string, // the document calls bytes a string of the format "binary"
      bodySerializer: (body) => body,
      headers: { "Content-Type": "application/octet-stream" },
    });
    await received(answer);
  }

  /** All entries of a directory, page by page. */
  async list(path = ""): Promise<Entry[]> {
    const directory = path === "" || path.endsWith("/") ? path : `${path}/`;
    const entries: Entry[] = [];
    let after: string | null = "";
    do {
      const { path: place } = this.#params(directory);
      const params = { path: place, query: { after } };
      const page: unknown = await received(this.#api.GET(PATH, { params, parseAs: "json" }));
      const listing = page as components["schemas"]["Listing"];
      entries.push(...listing.entries);
      after = listing.next;
    } while (after !== null);
    return entries;
  }

  async remove(path: string): Promise<void> {
    await received(this.#api.DELETE(PATH, { params: this.#params(path) }));
  }

  #params(path: string): { path: { session_id: string; path: string } } {
    // `..` alone would be resolved by the URL, before the service can judge it.
    return { path: { session_id: this.#id, path: /^\.\.?$/.test(path) ? `./${path}` : path } };
  }
}
