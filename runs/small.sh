#!/usr/bin/env bash
# The built-in model: English, H 384, 12 shared layers, on one GPU. Each step goes on where it was stopped.
#   TEXTS=folder-of-text TEACHERS=folder OUT=small-run runs/small.sh
# Not finished: the evaluation, the int8 form and the model card follow when the model is trained.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="${OUT:-small-run}"
pieces="$here/../src/albertkit/models/spiece.model"  # the original English vocabulary, 30,000 pieces

# 1. Shards of the text.
albertkit corpus "$TEXTS" -o "$out/shards" --tokenizer "$pieces"

# 2. Masked words and sentence order.
albertkit pretrain "$out/shards" -o "$out/pretrain" --shape small --batch 1024 --optimizer muon --learning-rate 1e-3 \
  --schedule wsd --minutes "${MINUTES:-25}" --lengths 128:0.9,512:0.1 --resume

# 3. Sentence vectors from two open teachers, at depths 3, 6, 9 and 12 and widths 64 to 384.
albertkit distill "$out/shards" -o "$out/vectors" --start "$out/pretrain/model" --workers 8 \
  --teacher "$TEACHERS/minilm" --teacher "$TEACHERS/gte:1.5" --batch 128 --optimizer muon --learning-rate 5e-4 \
  --minutes "${MINUTES:-25}" --resume

# 4. Eight bits.
albertkit quantize "$out/vectors/model" "$out/small-int8" --bits 8
