export { Cellwall, type SandboxOptions, type Sandboxes, type Snapshots } from "./client.js";
export { CellwallError } from "./errors.js";
export type { Outcome, RunEvent } from "./events.js";
export type { Entry, Files } from "./files.js";
export type {
  CodeOptions,
  CommandOptions,
  Commands,
  ForkOptions,
  Sandbox,
  Session,
  Snapshot,
  SnapshotOptions,
} from "./sandbox.js";
export type { components, paths } from "./schema.js";
export type { ClientOptions, RequestOptions } from "./transport.js";
