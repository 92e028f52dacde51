// Tokenizes texts for `test_web_tokenizer.py`: node tokenize.mjs REQUEST RESULT, two JSON files.
// The request has the file of the tokenizer's data, and calls: [method, ...arguments] each.
import { readFileSync, writeFileSync } from "node:fs";

import { Tokenizer } from "../../src/albertkit/web/tokenizer.js";

const [request, result] = process.argv.slice(2);
const { data, calls } = JSON.parse(readFileSync(request, "utf8"));
const tokenizer = new Tokenizer(JSON.parse(readFileSync(data, "utf8")));
writeFileSync(result, JSON.stringify(calls.map(([method, ...args]) => tokenizer[method](...args))));
