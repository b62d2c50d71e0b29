// What OpenFeature's server and web providers resolve: node run.mjs URL TOKEN < requests.json
// Each request is {provider: "server" | "web", key, context}; each answer the details, one JSON array.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import path from 'node:path';

const require = createRequire(path.join(process.env.OFREP_NODE, 'package.json'));
const [url, token] = process.argv.slice(2);
const headers = [['Authorization', `Bearer ${token}`]];
const requests = JSON.parse(readFileSync(0, 'utf8'));

const statuses = [];
const plain = globalThis.fetch;
globalThis.fetch = async (...given) => {
  const answer = await plain(...given);
  statuses.push(answer.status);
  return answer;
};

async function server({ key, context }) {
  const { OpenFeature } = require('@openfeature/server-sdk');
  const { OFREPProvider } = require('@openfeature/ofrep-provider');
  await OpenFeature.setProviderAndWait(new OFREPProvider({ baseUrl: url, headers }));
  return OpenFeature.getClient().getBooleanDetails(key, false, context);
}

async function web({ key, context, refetch }) {
  const { OpenFeature } = require('@openfeature/web-sdk');
  const { OFREPWebProvider } = require('@openfeature/ofrep-web-provider');
  const provider = new OFREPWebProvider({ baseUrl: url, headers, pollInterval: refetch ? 50 : 0, cacheMode: 'disabled' });
  await OpenFeature.setContext(context);
  await OpenFeature.setProviderAndWait(provider);
  if (refetch) await new Promise((done) => setTimeout(done, 1000));
  const details = OpenFeature.getClient().getBooleanDetails(key, false);
  await OpenFeature.clearProviders();
  return details;
}

const answers = [];
for (const request of requests) {
  statuses.length = 0;
  const details = await (request.provider === 'web' ? web : server)(request);
  answers.push({ ...details, statuses: [...statuses] });
}
process.stdout.write(JSON.stringify(answers));
process.exit(0);
