#!/usr/bin/env bash
# Stage 1 of small-zh: corpus, then masked-language-model and sentence-order pre-training on one GPU. Rerun the command to resume.
#   TEXTS=folder-of-text OUT=small-zh-run studies/small-zh/pretrain.sh
# To continue from the model in this folder with a lower learning rate:
#   START=small-zh RATE=5e-4 TEXTS=folder-of-text OUT=small-zh-run studies/small-zh/pretrain.sh
set -euo pipefail
here="$(dirname "$0")"
out="${OUT:-small-zh-run}"
model=(--shape small --option attention_bias=relative)
[ -z "${START:-}" ] || model=(--model "$START")

albertkit corpus "$TEXTS" -o "$out/shards" --tokenizer "$here/../../src/albertkit/models/small-zh" --shard-tokens 4000000
albertkit pretrain "$out/shards" -o "$out/pretrain" "${model[@]}" --batch-size 1024 --optimizer muon \
  --learning-rate "${RATE:-1e-3}" --warmup-ratio 0.02 --minutes "${MINUTES:-25}" \
  --lengths "${LENGTHS:-128:0.74,512:0.16,128:0.1}" --short-ratio 0.2 --single-ratio 0.4 --evaluations 26 --resume
albertkit quantize "$out/pretrain/model" "$out/small-zh-pretrained" --bits 8 --force
