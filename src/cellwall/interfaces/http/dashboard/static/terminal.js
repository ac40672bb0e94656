// A terminal of the session: lines go in, text comes out. Escape sequences that move the cursor are left out.
"use strict";
(() => {
  const open = document.getElementById("terminal-open"), screen = document.getElementById("terminal");
  const form = document.getElementById("terminal-form"), line = document.getElementById("terminal-line");
  if (!open) return;
  const MAX_CHARACTERS = 200000;
  const decoder = new TextDecoder();
  const plain = (text) => text.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]/g, "").replace(/\r\n/g, "\n").replace(/\r/g, "");
  let socket = null;
  const show = (text) => {
    screen.textContent = (screen.textContent + plain(text)).slice(-MAX_CHARACTERS);
    screen.scrollTop = screen.scrollHeight;
  };
  open.addEventListener("click", async () => {
    open.disabled = true;
    const who = await (await fetch("/v1/auth/session")).json();
    socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/sessions/${encodeURIComponent(open.dataset.session)}/terminal`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      socket.send(JSON.stringify({ csrf_token: who.csrf_token, rows: 30, columns: 100 }));
      screen.hidden = form.hidden = false; line.focus();
    };
    socket.onmessage = ({ data }) => {
      if (typeof data !== "string") { show(decoder.decode(data, { stream: true })); return; }
      const found = JSON.parse(data);
      show(found.error ? `\n[${found.error.message}]\n` : `\n[ended with exit code ${found.exit_code}]\n`);
    };
    socket.onclose = () => { open.disabled = false; form.hidden = true; };
  });
  const send = (text) => { if (socket?.readyState === WebSocket.OPEN) socket.send(new TextEncoder().encode(text)); };
  form.addEventListener("submit", (event) => { event.preventDefault(); send(line.value + "\n"); line.value = ""; });
  document.getElementById("terminal-interrupt").addEventListener("click", () => send("\x03"));
})();
