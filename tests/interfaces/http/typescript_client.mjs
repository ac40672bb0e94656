// Uses the client against the service of CELLWALL_URL, and prints what came back as JSON.
import { Cellwall, CellwallError } from "@cellwall/client";

const { CELLWALL_URL: url, CELLWALL_TOKEN: token } = process.env;
const cellwall = new Cellwall({ url, token });
const seen = {};
const codeOf = async (work) => {
  try {
    await work();
  } catch (error) {
    if (!(error instanceof CellwallError)) throw error;
    return [error.code, error.status, error.message !== "", typeof error.hint, typeof error.auditId];
  }
  return "no error";
};

const sandbox = await cellwall.sandboxes.create({ timeout: 30 });
await sandbox.runCode("x = 20");
seen.value = (await sandbox.runCode("x + 1")).value;
seen.failed = (await sandbox.runCode("1 / 0")).status;
const ran = await sandbox.commands.run("echo out; echo err >&2; exit 3");
seen.command = [ran.status, ran.exit_code, ran.stdout, ran.stderr];
seen.list = (await sandbox.commands.run(["echo", "a b", "$HOME"])).stdout;

const streamed = { stdout: "", names: [] };
for await (const event of sandbox.commands.stream("echo one; echo zwölf")) {
  if (event.name === "stdout") streamed.stdout += event.text;
  else streamed.names.push(event.name);
  if (event.name === "outcome") streamed.status = event.outcome.status;
}
seen.streamed = streamed;
const results = [];
for await (const event of sandbox.streamCode("print(x)")) results.push(event.name);
seen.streamedCode = results;

const bytes = new Uint8Array([0, 255, 10, 128]);
await sandbox.files.write("data/ü ?#%.bin", bytes);
await sandbox.files.write("/tmp/a.txt", "grüße");
seen.bytes = [...(await sandbox.files.readBytes("data/ü ?#%.bin"))];
seen.text = await sandbox.files.read("/tmp/a.txt");
seen.root = (await sandbox.files.list()).map((entry) => [entry.name, entry.kind]);
seen.entries = (await sandbox.files.list("data")).map((entry) => entry.name);
seen.same = (await sandbox.files.list(".")).length === seen.root.length;
seen.parent = await codeOf(() => sandbox.files.remove(".."));
await sandbox.files.remove("data/ü ?#%.bin");
seen.missing = await codeOf(() => sandbox.files.read("data/ü ?#%.bin"));
await sandbox.files.write("kept.txt", "kept");

const snapshot = await sandbox.snapshot({ name: "first" });
const copy = await cellwall.sandboxes.create({ from_snapshot: snapshot.id });
seen.restored = [await copy.files.read("kept.txt"), (await copy.runCode("x")).value];
const [fork] = await sandbox.fork();
seen.forked = await fork.files.read("kept.txt");
seen.snapshots = (await cellwall.snapshots.list()).filter(({ id }) => id === snapshot.id).length;
await cellwall.snapshots.delete(snapshot.id);

const connected = await cellwall.sandboxes.connect(sandbox.id);
seen.connected = (await connected.runCode("x")).value;
const ended = AbortSignal.timeout(200);
seen.aborted = await sandbox.commands.run("sleep 60", { signal: ended }).catch((error) => error.name);
const known = new Set((await cellwall.sandboxes.list()).map(({ id }) => id));
seen.listed = [sandbox, copy, fork].every(({ id }) => known.has(id));
for (const each of [sandbox, copy, fork]) await each.kill();
seen.killed = await codeOf(() => sandbox.runCode("1"));

seen.badId = await codeOf(() => cellwall.sandboxes.connect(".."));
seen.badOption = await codeOf(() => cellwall.sandboxes.create({ colour: "red" }));
seen.badToken = await codeOf(() => new Cellwall({ url, token: "wrong" }).sandboxes.list());
seen.badStream = await codeOf(() => sandbox.commands.stream("ls").next());
seen.unreachable = await codeOf(() => new Cellwall({ url: "http://127.0.0.1:1", token }).sandboxes.list());
seen.api = (await cellwall.api.GET("/v1/auth/session")).response.status;
console.log(JSON.stringify(seen));
