// Ids or vectors of texts by transformers.js, for `test_layouts.py`: node transformers_js.mjs PACKAGE REQUEST RESULT.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [library, request, result] = process.argv.slice(2);
const { AutoTokenizer, env, pipeline } = await import(pathToFileURL(library));
const { folder, texts, dtype, pooling, normalize } = JSON.parse(readFileSync(request, "utf8"));
env.allowRemoteModels = false;
let rows;
if (dtype === null) {
  const tokenizer = await AutoTokenizer.from_pretrained(folder, { local_files_only: true });
  rows = texts.map((text) => tokenizer(text, { return_tensor: false }).input_ids);
} else {
  const embed = await pipeline("feature-extraction", folder, { dtype, local_files_only: true });
  rows = (await embed(texts, { pooling, normalize })).tolist();
}
writeFileSync(result, JSON.stringify(rows));
