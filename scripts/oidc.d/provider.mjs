// Identity provider of scripts/oidc: npm's oidc-provider with its login pages for development, which accept any password.
// Usage: node provider.mjs PORT CALLBACK. POST /test/sign signs any claims with the provider's key, or with another one.
import { createServer } from 'node:http';
import { createPrivateKey, createPublicKey, generateKeyPairSync } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.cwd()}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { default: Provider } = await load('oidc-provider');
const jose = await load('jose');

const [port, callback] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const groups = { ann: ['shift'], bea: ['admins'], cli: ['auditors'], eve: ['others'], local: ['admins'] };

function newKey(kid) {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' };
}
// The key id is new with each start, as after a rotation; the foreign key claims the same id.
const own = newKey(`key-${process.pid}`);
const foreign = newKey(own.kid);

const device = 'urn:ietf:params:oauth:grant-type:device_code';
const client = (client_id) => ({
  client_id, token_endpoint_auth_method: 'none', grant_types: ['authorization_code', device], response_types: ['code'],
  redirect_uris: [callback], id_token_signed_response_alg: 'RS256',
});
const provider = new Provider(issuer, {
  clients: [client('drophammer'), client('grafana')],
  jwks: { keys: [own] },
  conformIdTokenClaims: false,
  claims: { openid: ['sub'], profile: ['preferred_username'], groups: ['groups'] },
  scopes: ['openid', 'profile', 'groups'],
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  findAccount: (ctx, id) => ({
    accountId: id,
    claims: () => ({ sub: `subject-${id}`, preferred_username: id, groups: groups[id] ?? [] }),
  }),
});

async function sign({ header, claims, key }) {
  const used = key === 'foreign' ? foreign : own;
  const protectedHeader = { kid: own.kid, ...header };
  if (header.alg === 'HS256') {
    // The public key, as a PEM file contains it, serves as the shared secret.
    const pem = createPublicKey(createPrivateKey({ key: used, format: 'jwk' })).export({ type: 'spki', format: 'pem' });
    return new jose.SignJWT(claims).setProtectedHeader(protectedHeader).sign(Buffer.from(pem));
  }
  return new jose.SignJWT(claims).setProtectedHeader(protectedHeader).sign(await jose.importJWK(used, 'RS256'));
}

const handle = provider.callback();
createServer((request, response) => {
  if (request.url !== '/test/sign') return handle(request, response);
  let body = '';
  request.on('data', (chunk) => { body += chunk; });
  request.on('end', async () => response.end(await sign(JSON.parse(body))));
}).listen(Number(port), '127.0.0.1', () => console.log(`listening at ${issuer}`));
