// A line for each behaviour; the script fails with all that failed. Behaviours bypass the cache: each asks the provider.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

export const { BASE_URL, KEY, NARROW_KEY, CAPPED_KEY, PROVIDER } = process.env;
export const BYPASS = { "x-proxium-cache": "bypass" };
export const SIGNATURE = "Er8BCkYI+/mock//signature+==";
export const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
export const IMAGE_URL = "https://example.com/cat.png";

// The SDKs lie outside the tree, where `import` does not look.
export const fetched = createRequire(`${process.env.NODE_CLIENTS}/clients.js`);
export const model = (name) => `${PROVIDER}-${name}`;
export const user = (content) => [{ role: "user", content }];
export const { deepEqual: equal, ok } = assert;

const checks = [];

/** Notes a check. */
export const behaviour = (sentence, check) => checks.push([sentence, check]);

/** All of a stream. */
export const all = async (stream) => {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
};

/** The error of this class that the call raises. */
export const raises = async (kind, call) => {
  let got;
  try {
    got = await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name} but ${JSON.stringify(got)}`);
};

/** Unary, and as a stream. */
export const eachWay = (call) => [() => call({}), () => all(call({ stream: true }))];

/** Runs all checks in their order. */
export const run = async () => {
  const failed = [];
  for (const [sentence, check] of checks) {
    const began = performance.now();
    try {
      await check();
      console.log(`ok    ${sentence} (${((performance.now() - began) / 1000).toFixed(2)} s)`);
    } catch (error) {
      failed.push(sentence);
      console.log(`FAIL  ${sentence}\n${error.stack}`);
    }
  }
  if (failed.length > 0) console.error(`failed: ${failed.join(", ")}`);
  process.exit(failed.length > 0 ? 1 : 0);
};
