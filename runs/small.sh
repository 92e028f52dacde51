#!/usr/bin/env bash
# Train the built-in English models (hidden size 384, 12 shared layers) on one GPU. Rerun the command to resume.
# The shipped models were trained in four sessions that ended with these settings; LOG.md describes each session.
#   TEXTS=folder-of-text TEACHERS=folder OUT=small-run runs/small.sh
set -euo pipefail
out="${OUT:-small-run}"

# 1. Tokenize the text with the original English vocabulary of 30,000 tokens (the default).
albertkit corpus "$TEXTS" -o "$out/shards"

# 2. Pre-train. Rows of 512 tokens train all positions; rows of 128 follow, since short texts are forgotten otherwise.
albertkit pretrain "$out/shards" -o "$out/pretrain" --shape small --batch-size 1024 --optimizer muon --learning-rate 1e-3 \
  --warmup-ratio 0.02 --minutes "${MINUTES:-25}" --lengths 128:0.74,512:0.16,128:0.1 --short-ratio 0.2 --single-ratio 0.4 --resume

# 3. Distil sentence vectors from two open teachers, at depths 3, 6, 9 and 12 and widths 64 to 384.
albertkit distill "$TEACHERS/minilm" "$TEACHERS/gte:1.5" "$out/shards" -o "$out/vectors" --model "$out/pretrain/model" --workers 10 \
  --optimizer muon --learning-rate 1e-3 --warmup-ratio 0.02 \
  --everyday 1200000 --batch-tokens 131072 --neighbor-share 0.5 --shallow-share 0.5 --minutes "${MINUTES:-25}" --resume

# No text had more than 256 tokens. Remove the untrained positions, so that longer texts are read in windows.
python - "$out/vectors/model" "$out/vectors/cut" <<'END'
import dataclasses, sys
from albertkit.artifact import read_artifact, write_artifact

model, table = read_artifact(sys.argv[1]), "encoder.embeddings.position.weight"
weights = {**model.weights, table: model.weights[table][:256]}
model = dataclasses.replace(model, weights=weights, config=model.config.replace(max_position_embeddings=256))
write_artifact(model, sys.argv[2], overwrite=True)
END

# 4. Quantize to 8 bits.
albertkit quantize "$out/vectors/cut" "$out/small" --bits 8 --force
albertkit quantize "$out/pretrain/model" "$out/small-pretrained" --bits 8 --force

# Calibrate --early-exit 99% on about 1,400 paragraphs of the text.
find "$TEXTS" -name '*.txt.xz' -print0 | sort -z | xargs -0 xzcat | awk 'length($0) > 20 && length($0) < 400 && ++n % 2000 == 0' > "$out/paragraphs.txt"
albertkit calibrate "$out/small" "$out/paragraphs.txt"

# 5. To ship the models: copy the folders into the package, measure, and write the card (its texts are in runs/builtin.json).
#   cp -r "$out/small" "$out/small-pretrained" src/albertkit/models/
#   python studies/builtin.py --float "$out/vectors/cut" --text "$out/shards" --sts sts-b/dev.tsv --squad squad/dev.json \
#     --clinc clinc150/data_small.json --peer MiniLM-L6="$TEACHERS/minilm" --peer gte-small="$TEACHERS/gte" --speed
#   make docs
