#!/usr/bin/env bash
# Questions from answers: a model that reads an answer and its sentence, and writes the question. SQuAD 1.1 or 2.0, or another file in its format.
#   runs/questions.sh train-v1.1.json dev-v1.1.json
#   MOST=2000 EPOCHS=1 OUT=try runs/questions.sh train-v1.1.json dev-v1.1.json     (to try it)
# Rerun it to resume the training.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
train="$1"
dev="$2"
out="${OUT:-questions}"

# 1. Pairs: "answer | sentence" and the question. The dev file is kept for the end; finetune holds out one in ten of the pairs by itself.
python "$here/questions.py" "$train" "$out/train.jsonl" ${MOST:+--most "$MOST"}
python "$here/questions.py" "$dev" "$out/test.jsonl" ${MOST:+--most "$MOST"}

# 2. Learn to write, from the built-in model (START names another one).
albertkit finetune generate "$out/train.jsonl" -o "$out/run" --target-length 32 --label-smoothing 0.1 \
  ${START:+--model "$START"} ${EPOCHS:+--epochs "$EPOCHS"}

# 3. BLEU and ROUGE-L, beside a copy of the source's first words; then in 8 bits.
albertkit evaluate -m "$out/run" "$out/test.jsonl"
albertkit quantize "$out/run" "$out/int8" --bits 8 --force
albertkit evaluate -m "$out/int8" "$out/test.jsonl"

# 4. Ask.
albertkit generate -m "$out/int8" "Paris | The capital of France is Paris." --beams 4
