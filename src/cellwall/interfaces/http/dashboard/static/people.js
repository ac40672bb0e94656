// Adds a passkey: the browser creates it, so this part needs a script.
"use strict";
(() => {
  const form = document.querySelector("#add-passkey");
  if (!form || !globalThis.PublicKeyCredential?.parseCreationOptionsFromJSON) return;
  form.hidden = false;
  const banner = document.querySelector("#banner");
  const say = (text) => { banner.textContent = text; banner.hidden = !text; };
  const call = async (method, path, body, csrf = "") => {
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
    const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error.message);
    return found;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { name, password } = form.elements;
    try {
      const { csrf_token: csrf } = await call("GET", "/v1/auth/session");
      const begun = await call("POST", "/v1/auth/passkeys/register", { password: password.value || null }, csrf);
      const options = PublicKeyCredential.parseCreationOptionsFromJSON(begun.options);
      const credential = await navigator.credentials.create({ publicKey: options });
      await call("POST", "/v1/auth/passkeys", { id: begun.id, name: name.value, credential: credential.toJSON() }, csrf);
      location.reload();
    } catch (error) { say(`The passkey was not added: ${error.message}`); }
    password.value = "";
  });
})();
