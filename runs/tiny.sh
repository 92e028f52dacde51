#!/usr/bin/env bash
# Train a tiny model from raw text to a filled mask, in a few minutes on a CPU. See docs/guides/pretraining.md.
#   runs/tiny.sh                                  on the text in this folder
#   OUT=folder STEPS=2000 runs/tiny.sh mine.txt   on your own files
# Rerun the command to resume.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="${OUT:-tiny}"
if [ $# -eq 0 ]; then set -- "$here/tiny.txt.xz"; fi  # excerpts of sixty children's books in the public domain

# 1. Train a tokenizer with 4,000 tokens, unless there is one from an earlier run.
[ -d "$out/tokenizer" ] || albertkit tokenizer "$@" -o "$out/tokenizer" --kind unigram --vocab-size 4000

# 2. Tokenize the text into shards. One document in twenty is held out.
albertkit corpus "$@" -o "$out/shards" --tokenizer "$out/tokenizer" --held-out 0.05

# 3. Pre-train on masked language modelling and sentence order, with 64 tokens per row.
albertkit pretrain "$out/shards" -o "$out/run" --shape tiny --lengths 64 --batch-size 32 --optimizer muon --learning-rate 3e-3 \
  --steps "${STEPS:-400}" --resume

# 4. Fill a mask; this part runs without torch.
albertkit fill "the little boy [MASK] to his mother ." -m "$out/run/model"
