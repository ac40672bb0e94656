// What every page shares: keys, the live stream, sign-in by link and passkey. Pages work without it.
"use strict";
(() => {
  const $ = (selector) => document.querySelector(selector);
  const banner = $("#banner");
  const say = (text) => { banner.textContent = text; banner.hidden = !text; };

  // --- the live stream: one message a second; reconnects by itself, also after an error page
  let source = null, retry = 0, timer = 0;
  const isSignedIn = $(".nav") !== null;
  function connect() {
    source = new EventSource("/ui/events");
    source.onopen = () => { if (retry) say(""); retry = 0; };
    source.onmessage = (event) => {
      const message = JSON.parse(event.data);
      const count = $("#waiting");
      count.textContent = message.waiting; count.hidden = message.waiting === 0;
      document.title = document.title.replace(/^\(\d+\) /, "");
      if (message.waiting) document.title = `(${message.waiting}) ${document.title}`;
      if (message.asked) document.body.dispatchEvent(new CustomEvent("cellwall:questions"));
      document.dispatchEvent(new CustomEvent("cellwall:message", { detail: message }));
    };
    source.onerror = () => {
      retry = Math.min(retry + 1, 10);
      if (retry > 1) say("The connection to the service is lost; this page tries again by itself.");
      // A browser gives up after an error response, which a restart behind a proxy may give.
      if (source.readyState === EventSource.CLOSED) { clearTimeout(timer); timer = setTimeout(connect, 500 * retry); }
    };
  }
  const disconnect = () => { if (source) source.close(); clearTimeout(timer); };
  if (isSignedIn) {
    connect();
    addEventListener("pagehide", disconnect);
    addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  }

  // --- keys
  const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
  let selected = null;
  function select(row) {
    if (selected) selected.classList.remove("is-selected");
    selected = row;
    if (!row) return;
    row.classList.add("is-selected");
    row.scrollIntoView({ block: "nearest" });
    const link = row.querySelector("a, button, input");
    if (link) link.focus({ preventScroll: true });
  }
  // A row is selected by its link as well: by the tab key, and after its panel was drawn again.
  document.addEventListener("focusin", (event) => {
    const row = event.target.closest?.("[data-row]");
    if (row && row !== selected) { selected?.classList.remove("is-selected"); selected = row; row.classList.add("is-selected"); }
  });
  function move(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(selected);
    select(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step))]);
  }
  function answer(key) {
    const within = selected && document.contains(selected) ? selected : document;
    const buttons = within.querySelectorAll(`button[data-answer="${key}"]`);
    // On a list a row must be selected first: a key never answers a question that nobody chose.
    if (buttons.length === 1) buttons[0].click();
    else if (buttons.length > 1) say("Select a question first: j or k.");
  }
  let went = false;
  document.addEventListener("keydown", (event) => {
    const typed = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typed.matches("input:not([type=checkbox]), textarea, select, .term")) {
      if (event.key === "Escape") typed.blur();
      return;
    }
    if (went) {
      went = false;
      const entry = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (entry) { event.preventDefault(); entry.click(); }
      return;
    }
    switch (event.key) {
      case "?": $("#keys")?.showModal(); break;
      case "/": $("#search")?.focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "g": went = true; break;
      case "a": case "d": answer(event.key); break;
      case "Escape": say(""); return;
      case "Enter": if (!selected || typed.matches("a, button, summary") || !selected.dataset.href) return; location.href = selected.dataset.href; break;
      default: return;
    }
    event.preventDefault();
  });

  // --- sign-in: the code of a one-time link stands behind #, which no server sees
  const code = $("#link-code");
  if (code && location.hash.startsWith("#sign-in=")) {
    code.value = decodeURIComponent(location.hash.slice("#sign-in=".length));
    $("#by-link").open = true;
    history.replaceState(null, "", location.pathname + location.search);
    $("#by-link input[name=owner]").focus();
  }
  const passkey = $("#by-passkey");
  if (passkey && globalThis.PublicKeyCredential?.parseRequestOptionsFromJSON) {
    passkey.hidden = false;
    const post = async (path, body) => {
      const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      const found = await response.json();
      if (!response.ok) throw new Error(found.error.message);
      return found;
    };
    passkey.addEventListener("click", async () => {
      passkey.disabled = true; // the browser asks once at a time
      say(""); // what was said of an earlier attempt is not true of this one
      try {
        const begun = await post("/v1/auth/passkeys/challenge", {});
        const options = PublicKeyCredential.parseRequestOptionsFromJSON(begun.options);
        const credential = await navigator.credentials.get({ publicKey: options });
        await post("/v1/auth/passkeys/token", { id: begun.id, credential: credential.toJSON(), cookie: true });
        location.href = passkey.dataset.next;
      } catch (error) { say(`The passkey was not accepted: ${error.message}`); }
      finally { passkey.disabled = false; }
    });
  }
})();
