// The attacks of the catalog that JavaScript can try with Deno's own functions. GIVEN stands before.
const attacks = {};
const decoder = new TextDecoder();
const read = (path) => decoder.decode(Deno.readFileSync(path));
const steal = (path) => {
  if (!read(path).includes(GIVEN.mark)) throw new Error("another file");
  return "the secret";
};
const up = "../".repeat(64) + GIVEN.secret.slice(1);
attacks["read-by-its-path"] = () => steal(GIVEN.secret);
attacks["read-by-dot-dot"] = () => steal(`${GIVEN.workspace}/${up}`);
attacks["read-by-proc-self-root"] = () => steal(`/proc/self/root${GIVEN.secret}`);
attacks["read-by-proc-self-cwd"] = () => steal(`/proc/self/cwd/${up}`);
attacks["read-by-a-symlink-that-lay-there"] = () => steal(`${GIVEN.workspace}/link`);
attacks["read-by-a-new-symlink"] = () => {
  Deno.symlinkSync(GIVEN.secret, `${GIVEN.workspace}/new-link`);
  return steal(`${GIVEN.workspace}/new-link`);
};
attacks["hard-link-to-it"] = () => {
  Deno.linkSync(GIVEN.secret, `${GIVEN.workspace}/stolen`);
  return "linked";
};
attacks["rename-it-into-the-workspace"] = () => {
  Deno.renameSync(`${GIVEN.secret}.spare`, `${GIVEN.workspace}/moved`);
  return "moved";
};
attacks["make-a-file-beside-the-workspace"] = () => {
  Deno.writeTextFileSync(`${GIVEN.workspace}/../planted`, "x");
  return "planted";
};
attacks["connect-to-a-socket-of-the-host"] = async () => {
  (await Deno.connect({ transport: "unix", path: GIVEN.socket })).close();
  return "connected";
};
attacks["connect-to-the-agent-in-SSH_AUTH_SOCK"] = async () => {
  const path = Deno.env.get("SSH_AUTH_SOCK");
  (await Deno.connect({ transport: "unix", path })).close();
  return "connected";
};
for (const name of ["kcore", "kallsyms", "keys", "key-users", "cmdline", "interrupts", "timer_list"]) {
  attacks[`read-proc-${name}`] = () => {
    const file = Deno.openSync(`/proc/${name}`);
    const count = file.readSync(new Uint8Array(64));
    if (!count) throw new Error("empty");
    return count;
  };
}
const addresses = {
  "loopback": "127.0.0.1", "loopback-elsewhere": "127.8.9.1", "zero": "0.0.0.0",
  "ipv6-loopback": "::1", "every-other-address-of-the-host": GIVEN.addresses[0],
};
for (const [name, hostname] of Object.entries(addresses)) {
  attacks[`tcp-${name}`] = async () => {
    const line = await Deno.connect({ hostname, port: GIVEN.ports.tcp });
    const count = await line.read(new Uint8Array(16));
    line.close();
    return count;
  };
}
attacks["see-interfaces-of-the-host"] = () => JSON.stringify(Deno.networkInterfaces());
attacks["listen-where-the-host-can-reach-it"] = () => {
  Deno.listen({ hostname: GIVEN.addresses[0], port: 0 }).close();
  return "listening";
};
attacks["signal-a-process-of-the-host"] = () => {
  Deno.kill(GIVEN.victim, "SIGCONT");
  return "delivered";
};
attacks["read-the-environment-of-a-process-of-the-host"] = () => {
  const text = read(`/proc/${GIVEN.victim}/environ`);
  if (!text.includes(GIVEN.mark)) throw new Error("another process");
  return "read";
};
attacks["posix-shared-memory-of-the-host"] = () => read(`/dev/shm/${GIVEN.mark}`).length;
attacks["neighbour-file-in-tmp"] = () => read(`/tmp/${GIVEN.mark}`).length;
attacks["neighbour-file-in-dev-shm"] = () => read(`/dev/shm/${GIVEN.mark}`).length;
attacks["neighbour-port"] = async () => {
  (await Deno.connect({ hostname: "127.0.0.1", port: GIVEN.port })).close();
  return "connected";
};
attacks["neighbour-socket-in-tmp"] = async () => {
  (await Deno.connect({ transport: "unix", path: `/tmp/${GIVEN.mark}.sock` })).close();
  return "connected";
};
attacks["set-id-chmod"] = () => {
  Deno.writeTextFileSync(`${GIVEN.workspace}/a`, "x");
  Deno.chmodSync(`${GIVEN.workspace}/a`, 0o4755);
  if (!(Deno.statSync(`${GIVEN.workspace}/a`).mode & 0o4000)) throw new Error("dropped");
  return "set";
};
attacks["environment"] = () => {
  const found = Object.values(Deno.env.toObject()).filter((text) => text.startsWith(GIVEN.prefix));
  if (!found.length) throw new Error("nothing looks like the value");
  return found.length;
};
attacks["environment-of-init"] = () => {
  for (const entry of Deno.readDirSync("/proc")) {
    if (!/^\d+$/.test(entry.name) || Number(entry.name) === Deno.pid) continue;
    try {
      if (read(`/proc/${entry.name}/environ`).includes(GIVEN.prefix)) return entry.name;
    } catch { /* a process of another user */ }
  }
  throw new Error("not there");
};
const found = {};
try {
  Deno.writeTextFileSync(`${GIVEN.workspace}/written`, "x");
  found.works = ["through", "the workspace can be written"];
} catch (error) {
  found.works = ["broken", String(error)];
}
for (const [name, act] of Object.entries(attacks)) {
  try {
    found[name] = ["through", String(await act()).slice(0, 200)];
  } catch (error) {
    found[name] = ["refused", String(error).slice(0, 200)];
  }
}
console.log("\nPEERS-REPORT " + JSON.stringify(found));
Deno.exit(0);
