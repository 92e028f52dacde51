#!/usr/bin/env bash
# From text to a filled mask on a laptop CPU, in about two minutes. Give your own text files as arguments, if you like.
#   runs/tiny.sh [FILES]        OUT=folder MINUTES=1.5 runs/tiny.sh mine.txt
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="${OUT:-tiny-run}"
if [ $# -eq 0 ]; then set -- "$here/tiny.txt.xz"; fi  # excerpts of sixty public-domain books for children

# 1. A vocabulary of 4,000 pieces, learnt from the text.
albertkit tokenizer "$@" -o "$out/tokenizer" --kind unigram --vocab-size 4000

# 2. Sentences, tokens, shards; one document in twenty is held out.
albertkit corpus "$@" -o "$out/shards" --tokenizer "$out/tokenizer" --held-out 0.05

# 3. Masked words and sentence order, 64 tokens a row. Stopped? The same command goes on.
albertkit pretrain "$out/shards" -o "$out/run" --shape tiny --lengths 64 --batch-size 32 --optimizer muon --learning-rate 3e-3 \
  --minutes "${MINUTES:-1.5}" --resume

# 4. The model fills a mask, on the torch-free runtime.
albertkit fill "the little boy [MASK] to his mother ." -m "$out/run/model"
