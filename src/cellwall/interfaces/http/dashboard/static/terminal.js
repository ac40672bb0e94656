// A terminal of the session: keys go in as bytes, the screen of screen.js shows what comes out.
"use strict";
(() => {
  const open = document.getElementById("terminal-open"), place = document.getElementById("terminal");
  if (!open) return;
  open.hidden = false;
  const form = document.getElementById("terminal-form"), line = document.getElementById("terminal-line");
  const full = document.getElementById("terminal-full"), panel = document.getElementById("terminal-panel"), state = document.getElementById("terminal-state");
  const encoder = new TextEncoder();
  let socket = null, screen = null, pending = 0, decoder = new TextDecoder();
  const KEYS = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b", Delete: "\x1b[3~", Insert: "\x1b[2~", PageUp: "\x1b[5~", PageDown: "\x1b[6~",
    F1: "\x1bOP", F2: "\x1bOQ", F3: "\x1bOR", F4: "\x1bOS", F5: "\x1b[15~", F6: "\x1b[17~", F7: "\x1b[18~", F8: "\x1b[19~", F9: "\x1b[20~", F10: "\x1b[21~" };
  const ARROWS = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };
  const send = (text) => { if (socket?.readyState === WebSocket.OPEN) socket.send(encoder.encode(text)); };
  function measure() {
    const probe = document.createElement("span");
    probe.textContent = "0".repeat(50); probe.className = "probe"; place.append(probe);
    const { width, height } = probe.getBoundingClientRect(); probe.remove();
    const style = getComputedStyle(place), across = place.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const down = place.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    return { rows: Math.max(8, Math.min(200, Math.floor(down / height))), columns: Math.max(20, Math.min(300, Math.floor(across / (width / 50)))) };
  }
  const draw = () => { pending = 0; const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40; screen.draw(place); if (isAtEnd) place.scrollTop = place.scrollHeight; };
  const show = (text) => { screen.write(text); if (!pending) pending = requestAnimationFrame(draw); };
  function fit() {
    if (!screen || place.hidden) return;
    const { rows, columns } = measure();
    if (rows === screen.rows && columns === screen.columns) return;
    screen.resize(rows, columns); draw();
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ rows, columns }));
  }
  const note = (text) => { state.textContent = text; };
  function setFull(isFull) {
    panel.classList.toggle("is-full", isFull); document.body.classList.toggle("has-full", isFull);
    full.firstChild.textContent = isFull ? "Leave full screen " : "Full screen ";
    fit(); if (isFull) place.focus(); else full.focus();
  }
  const isFull = () => panel.classList.contains("is-full");
  open.addEventListener("click", async () => {
    open.disabled = true; note("connecting");
    try {
      const response = await fetch("/v1/auth/session");
      if (!response.ok) { location.reload(); return; } // the page renews the sign-in
      const who = await response.json();
      place.hidden = form.hidden = full.hidden = false;
      const { rows, columns } = measure();
      screen = new TerminalScreen(rows, columns); decoder = new TextDecoder();
      socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/sessions/${encodeURIComponent(open.dataset.session)}/terminal`);
      socket.binaryType = "arraybuffer";
      socket.onopen = () => { socket.send(JSON.stringify({ csrf_token: who.csrf_token, rows, columns })); note("open"); place.focus(); };
      socket.onmessage = ({ data }) => {
        if (typeof data !== "string") { show(decoder.decode(data, { stream: true })); return; }
        const found = JSON.parse(data);
        note(found.error ? `refused: ${found.error.message}` : `ended with exit code ${found.exit_code}`);
      };
      socket.onclose = () => { open.disabled = false; form.hidden = true; if (state.textContent === "open" || state.textContent === "connecting") note("the connection was lost"); };
    } catch (error) { open.disabled = false; note("the service cannot be reached"); }
  });
  place.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.ctrlKey && event.altKey && event.key === "Enter") { event.preventDefault(); setFull(!isFull()); return; }
    if (event.metaKey || (event.ctrlKey && event.shiftKey)) return; // copy and paste of the browser
    if (event.ctrlKey && event.key === "c" && String(getSelection())) return;
    let text = "";
    if (event.key in ARROWS) text = (screen?.keysAreApplication ? "\x1bO" : "\x1b[") + ARROWS[event.key];
    else if (event.key === "Tab" && event.shiftKey) text = "\x1b[Z";
    else if (event.key in KEYS) text = KEYS[event.key];
    else if (event.ctrlKey && /^[a-z@[\\\]^_ ]$/i.test(event.key)) { if (event.key === "v") return; text = String.fromCharCode((event.key === " " ? 64 : event.key.toUpperCase().charCodeAt(0)) & 31); }
    else if (!event.ctrlKey && [...event.key].length === 1) text = event.key;
    if (!text) return;
    event.preventDefault(); event.stopPropagation();
    send((event.altKey && !(event.key in ARROWS) ? "\x1b" : "") + text);
  });
  place.addEventListener("paste", (event) => {
    event.preventDefault();
    // Line breaks as typed, and no end of a bracketed paste: what is pasted cannot run by itself where the program asked to know.
    const text = event.clipboardData.getData("text/plain").slice(0, 20000).replace(/\r?\n/g, "\r").replaceAll("\x1b", "");
    send(screen?.isBracketed ? `\x1b[200~${text}\x1b[201~` : text);
  });
  full.addEventListener("click", () => setFull(!isFull()));
  panel.addEventListener("keydown", (event) => { if (event.target !== place && event.key === "Escape" && isFull()) setFull(false); });
  form.addEventListener("submit", (event) => { event.preventDefault(); send(`${line.value}\r`); line.value = ""; });
  document.getElementById("terminal-interrupt").addEventListener("click", () => send("\x03"));
  let resizing = 0;
  addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(fit); });
})();
