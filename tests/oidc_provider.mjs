// A certified OpenID provider (npm oidc-provider) on loopback with TLS, steered over its input:
// one JSON object per line, each answered by one line.
import { createServer } from 'node:https';
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

console.info = console.warn = () => {}; // the output is for answers
const [library, certificate, redirectUri] = process.argv.slice(2);
const redirectUris = [redirectUri];
const { default: Provider } = await import(pathToFileURL(library).href);
const pem = readFileSync(certificate);
const state = { accounts: {}, provider: null, handler: null };
const server = createServer({ key: pem, cert: pem }, (request, response) =>
  state.handler(request, response));
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `https://localhost:${server.address().port}`;
let count = 0;

function renew() {
  count += 1;
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey;
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
  const named = (key, alg) =>
    ({ ...key.export({ format: 'jwk' }), kid: `${alg}-${count}`, alg, use: 'sig' });
  const client = {
    redirect_uris: redirectUris, response_types: ['code'], grant_types: ['authorization_code'],
  };
  state.provider = new Provider(issuer, {
    clients: [
      { ...client, client_id: 'cellwall', client_secret: 'a secret: with %20 + signs',
        id_token_signed_response_alg: 'RS256' },
      { ...client, client_id: 'public', token_endpoint_auth_method: 'none',
        id_token_signed_response_alg: 'ES256' },
    ],
    jwks: { keys: [named(rsa, 'RS256'), named(ec, 'ES256')] },
    cookies: { keys: ['for tests'] },
    conformIdTokenClaims: false,
    claims: { openid: ['sub', 'groups', 'preferred_username', 'email', 'email_verified'] },
    findAccount: (_, id) => ({
      accountId: id, claims: () => ({ sub: id, preferred_username: id, ...state.accounts[id] }),
    }),
  });
  state.handler = state.provider.callback();
}

renew();
console.log(JSON.stringify({ issuer }));
for await (const line of createInterface({ input: process.stdin })) {
  const { accounts, rotate, redirect } = JSON.parse(line);
  if (redirect) redirectUris.push(redirect);
  if (accounts) state.accounts = accounts;
  if (rotate || redirect) renew();
  console.log('{}');
}
process.exit(0);
