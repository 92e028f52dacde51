#!/usr/bin/env bash
# The studies for a GPU on a CPU, at toy size, with 80 seconds of processor time: studies/gpu-trial.sh TEXTS TASKS
# TEXTS is a folder with zhwiki-*.txt.xz, TASKS one of labelled sets (tasksets.py). It ends with "all results are there".
set -euo pipefail
texts="$(realpath "$1")" tasks="$(realpath "$2")"
here="$(cd "$(dirname "$0")" && pwd)"
export PYTHON="${PYTHON:-python}" OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
toy="$(mktemp -d)"
trap 'rm -rf "$toy"' EXIT
export PYTHONPATH="$here/../src"
tiny="--eval-rows 4 --log-every 1 --device cpu"

echo "== data, $SECONDS s"
mkdir -p "$toy/texts" "$toy/results"
(xzcat "$texts/zhwiki-00.txt.xz" || true) | head -n 1500 | xz -0 >"$toy/texts/zhwiki-00.txt.xz"
for file in chnsenticorp/train.tsv chnsenticorp/dev.tsv afqmc/train.txt afqmc/dev.txt cluener/train.json cluener/dev.json; do
  mkdir -p "$toy/tasks/$(dirname $file)" && awk '/^}/ || !/^[ {]/ { n++ } { print } n == 31 { exit }' "$tasks/$file" >"$toy/tasks/$file"
done
export WORK="$toy/zh" DATA="$toy/zh-data" CARRIED="$toy/carried" SETS="chnsenticorp afqmc cluener"
"$here/small-zh/further.sh" data "$toy/texts" "$toy/tasks"

echo "== tests/gpu (skipped without a GPU), $SECONDS s"
"$PYTHON" -m pytest -q -n 0 "$here/../tests/gpu" || [ $? = 5 ]
echo "== gpu_bulk, $SECONDS s"
"$PYTHON" "$here/gpu_bulk.py" --device torch --depth 3 --texts 64 --peer-texts 32 --part-rows 32 --workers 1 --out "$toy/results/gpu-bulk.json" >/dev/null

echo "== training_profile, $SECONDS s"
"$PYTHON" "$here/training_profile.py" --rows 4 --steps 1 --lengths 128 --device cpu --compile no --out "$toy/results/training-profile.json" >/dev/null 2>&1

echo "== further.sh; its program is killed, then it is stopped, $SECONDS s"
export BATCH=2 EXTRA="$tiny --no-alarm" # the loss of two rows jumps
export MINUTES=0.3 LENGTHS=32:0.4,64:0.6 ADAPT_TOKENS=128 WORKERS=1 CURVES="--steps 1 --limit 2 --device cpu" BUDGET=600
BESIDE="$PYTHON $here/curves.py $toy/tasks $WORK/beside/curves-muon.jsonl --plan starts --start small-zh --steps 1 --limit 1 --workers 1 --device cpu" \
  "$here/small-zh/further.sh" call 38 "$toy/results"
! pkill -9 -P "$(cat "$WORK/pid")" || sleep 15 # the next attempt resumes
"$here/small-zh/further.sh" stop
echo "== further.sh, resumed, $SECONDS s"
"$here/small-zh/further.sh" call 300 "$toy/results"

echo "== blocks.sh, $SECONDS s"
export WORK="$toy/blocks" DATA="$toy/blocks-data"
"$PYTHON" -m albertkit.cli.entry_point corpus "$here/../runs/tiny.txt.xz" -o "$toy/shards" --held-out 0.05 >/dev/null
"$PYTHON" "$here/carry_shards.py" pack "$toy/shards" "$DATA"
VARIANTS="relative, pre_norm; relative, gated_ffn" TOKENS=192 EVALUATIONS=2 JOBS=1 MODELS=1 \
  EXTRA="--layers 1 --batch 2 --length 32 --compile no $tiny" "$here/blocks/blocks.sh" call 120 "$toy/results"

for name in gpu-bulk.json training-profile.json starts.jsonl curves-muon.jsonl further.tar.00 adapted.tar.00 blocks.jsonl models.tar.00 logs.tar.xz; do
  [ -s "$toy/results/$name" ] || { echo "$name is missing"; exit 1; }
done
! grep -h '"error"' "$toy"/results/*.jsonl || exit 1
"$PYTHON" "$here/carry.py" unpack "$toy"/results/further.tar.* --into "$toy/unpacked"
grep "^attempt" "$toy/zh/train.log"
echo "all results are there"
