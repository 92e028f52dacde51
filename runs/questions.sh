#!/usr/bin/env bash
# Train question generation: from an answer and its sentence, write the question. Input: SQuAD 1.1 or 2.0, or a file in its format.
#   runs/questions.sh train-v1.1.json dev-v1.1.json
#   MOST=2000 EPOCHS=1 OUT=try runs/questions.sh train-v1.1.json dev-v1.1.json     (a short trial)
# Rerun the command to resume.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
train="$1"
dev="$2"
out="${OUT:-questions}"

# 1. Write pairs of "answer | sentence" and question. The dev file is the test set; finetune holds out one in ten training pairs.
python "$here/questions.py" "$train" "$out/train.jsonl" ${MOST:+--most "$MOST"}
python "$here/questions.py" "$dev" "$out/test.jsonl" ${MOST:+--most "$MOST"}

# 2. Fine-tune the built-in model, or the one in START.
albertkit finetune generate "$out/train.jsonl" -o "$out/run" --target-length 32 --label-smoothing 0.1 \
  ${START:+--model "$START"} ${EPOCHS:+--epochs "$EPOCHS"}

# 3. Measure BLEU and ROUGE-L, with a copy of the source's first words as the baseline; then the same with 8 bits.
albertkit evaluate -m "$out/run" "$out/test.jsonl"
albertkit quantize "$out/run" "$out/int8" --bits 8 --force
albertkit evaluate -m "$out/int8" "$out/test.jsonl"

# 4. Generate a question.
albertkit generate -m "$out/int8" "Paris | The capital of France is Paris." --beams 4
