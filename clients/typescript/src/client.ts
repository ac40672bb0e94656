/** The client: sandboxes and snapshots of the token's user. */

import { Sandbox, type Session, type Snapshot } from "./sandbox.js";
import type { components } from "./schema.js";
import { checkedId, openApi, received, type Api, type ClientOptions } from "./transport.js";

export type SandboxOptions = components["schemas"]["NewSession"];

export class Sandboxes {
  readonly #api: Api;

  constructor(api: Api) {
    this.#api = api;
  }

  async create(body: SandboxOptions = {}): Promise<Sandbox> {
    const made = await received(this.#api.POST("/v1/sessions", { body }));
    return new Sandbox(this.#api, made.id);
  }

  /** A sandbox that lives already. */
  async connect(id: string): Promise<Sandbox> {
    const sandbox = new Sandbox(this.#api, checkedId(id));
    await sandbox.info();
    return sandbox;
  }

  /** All that live. */
  async list(): Promise<Session[]> {
    const found: Session[] = [];
    let after: string | null = "";
    do {
      const page: components["schemas"]["SessionPage"] = await received(
        this.#api.GET("/v1/sessions", { params: { query: { after } } }),
      );
      found.push(...page.sessions);
      after = page.next;
    } while (after !== null);
    return found;
  }
}

export class Snapshots {
  readonly #api: Api;

  constructor(api: Api) {
    this.#api = api;
  }

  async list(): Promise<Snapshot[]> {
    const found: Snapshot[] = [];
    let after: string | null = "";
    do {
      const page: components["schemas"]["SnapshotPage"] = await received(
        this.#api.GET("/v1/snapshots", { params: { query: { after } } }),
      );
      found.push(...page.snapshots);
      after = page.next;
    } while (after !== null);
    return found;
  }

  async delete(id: string): Promise<void> {
    const params = { path: { snapshot_id: checkedId(id) } };
    await received(this.#api.DELETE("/v1/snapshots/{snapshot_id}", { params }));
  }
}

export class Cellwall {
  readonly sandboxes: Sandboxes;
  readonly snapshots: Snapshots;
  /** Every other route: `cellwall.api.GET("/v1/approvals")`. */
  readonly api: Api;

  constructor(options: ClientOptions) {
    this.api = openApi(options);
    this.sandboxes = new Sandboxes(this.api);
    this.snapshots = new Snapshots(this.api);
  }
}
