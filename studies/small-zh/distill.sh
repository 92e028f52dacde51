#!/usr/bin/env bash
# Stage 2 of small-zh on a machine without network: what was carried there, to a trained model. Rerun a step to resume it.
#   PARTS="folder folder" OUT=.cache/zh studies/small-zh/distill.sh texts            # unpacks shards and draws texts; needs no GPU
#   PARTS="folder folder" OUT=.cache/zh studies/small-zh/distill.sh train            # unpacks teachers, computes targets and trains
#   PARTS="folder folder" OUT=.cache/zh studies/small-zh/distill.sh start STEP       # texts or train in the background
#   OUT=.cache/zh studies/small-zh/distill.sh poll SECONDS FOLDER                    # waits, prints the progress, packs every 60 seconds
#   OUT=.cache/zh studies/small-zh/distill.sh pack FOLDER                            # the last checkpoint in float16 and logs
# The folders of PARTS contain what carry_shards.py wrote, misc.tar.xz (tokenizer of the shards, Tatoeba's cmn.txt, excluded.txt of
# evaluate.py --keys, mixture.npz, data of evaluate.py) and the parts of teachers.tar.xz. DEADLINE is the end of the training in seconds since 1970.
# SEARCH=1 chooses the mixture from those in distill.py. On one H200: 40 s for the texts, 180 s for the targets, 0.9 to 1.2 M tokens per second.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python}"
out="${OUT:-.cache/zh}"
model="${MODEL:-$here/../../src/albertkit/models/small-zh}"
export PYTHONPATH="$here/../../src" PYTHONUNBUFFERED=1
mkdir -p "$out/parts" "$out/teachers"
options=("$out/shards" -o "$out/run" --model "$model" --tatoeba "$out/parts/cmn.txt" --exclude "$out/parts/excluded.txt" --data "$out/parts/data"
  --everyday "${EVERYDAY:-400000}" --questions "${QUESTIONS:-300000}" --variants "${VARIANTS:-4}" --held-out "${HELD_OUT:-1024}" --workers "${WORKERS:-15}"
  --depths "${DEPTHS:-3,4,5,6,7,8,9,10,11,12}" --sampled-depths "${SAMPLED_DEPTHS:-3}"
  --batch-tokens "${BATCH_TOKENS:-131072}" --learning-rate "${RATE:-1e-3}" --evaluations "${EVALUATIONS:-8}")
if [ -n "${DEADLINE:-}" ]; then options+=(--deadline "$DEADLINE"); else options+=(--minutes "${MINUTES:-19}"); fi

draw_texts() {
  if [ ! -f "$out/shards/manifest.json" ]; then
    for part in $PARTS; do
      [ ! -f "$part/misc.tar.xz" ] || tar xJf "$part/misc.tar.xz" -C "$out/parts"
      find "$part" -maxdepth 1 \( -name '*-0*.xz' -o -name manifest.json -o -name unigrams.npy \) -exec cp {} "$out/parts" \;
    done
    "$python" "$here/../carry_shards.py" unpack "$out/parts" "$out/shards"
  fi
  "$python" "$here/distill.py" "${options[@]}" --only-texts
}

case "$1" in
start)
  setsid nohup "$here/distill.sh" "$2" >>"$out/$2.log" 2>&1 </dev/null &
  ;;
texts)
  exec 9>"$out/lock"
  flock 9 # texts that are being drawn
  draw_texts
  ;;
train)
  exec 8>"$out/train.lock"
  flock -n 8 || { echo "a training is running"; exit 1; }
  if [ ! -f "$out/teachers/use/config.json" ]; then
    find $PARTS -name 'teachers.tar.xz.*' -printf '%f %p\n' | sort | cut -d' ' -f2 | xargs cat | tar xJ -C "$out/teachers"
  fi
  "$here/distill.sh" texts
  mixture="${MIXTURE:-$out/parts/mixture.npz}"
  [ ! -f "$mixture" ] || options+=(--mixture "$mixture")
  [ -z "${SEARCH:-}" ] || options+=(--search-mixture)
  for attempt in 1 2 3; do
    echo "attempt $attempt"
    ! "$python" "$here/distill.py" "${options[@]}" --teacher m3e="$out/teachers/m3e" \
      --teacher use="$out/teachers/use" --weights "${WEIGHTS:-1,1}" || exit 0
  done
  exit 1
  ;;
poll) # what is packed early is there if the machine ends
  until=$((SECONDS + $2))
  while [ $SECONDS -lt $until ] && [ ! -d "$out/run/model" ]; do
    sleep $((until - SECONDS < 60 ? until - SECONDS : 60))
    "$here/distill.sh" pack "$3" >/dev/null 2>&1 || true
  done
  tail -qn 5 "$out"/*.log | cut -c1-900
  nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
  "$here/distill.sh" pack "$3" || true
  ;;
pack)
  mkdir -p "$2"
  cp "$out"/*.log "$2" || true
  [ ! -f "$out/run/metrics.jsonl" ] || cp "$out/run/metrics.jsonl" "$2"
  last="$(find "$out/run/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -1)"
  [ ! -d "$out/run/model" ] || last="$out/run"
  [ -n "$last" ] || exit 0
  rm -rf "$out/packed" && mkdir -p "$out/packed" && cp -r "$last/model" "$out/packed/small-zh"
  (cd "$out/packed" && "$python" "$here/../carry.py" pack model small-zh)
  cp "$out"/packed/model.tar.* "$2"
  ;;
esac
