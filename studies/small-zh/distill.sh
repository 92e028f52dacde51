#!/usr/bin/env bash
# Stage 2 of small-zh on a machine without network: what was carried there, to a trained model. Rerun a step to resume it.
#   PARTS="folder folder" OUT=.cache/zh studies/small-zh/distill.sh texts     # unpacks shards and draws texts; needs no GPU
#   PARTS="folder folder" OUT=.cache/zh studies/small-zh/distill.sh train     # unpacks teachers, computes targets and trains
#   OUT=.cache/zh studies/small-zh/distill.sh pack FOLDER                     # the last checkpoint in float16, logs and mixture
# The first folder of PARTS is what carry_shards.py wrote, with Tatoeba's cmn.txt and excluded.txt of evaluate.py --keys; all may contain parts of teachers.tar.gz.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-python}"
out="${OUT:-.cache/zh}"
export PYTHONPATH="$here/../../src"
mkdir -p "$out"
options=("$out/shards" -o "$out/run" --model "${MODEL:-$here/../../src/albertkit/models/small-zh}" --tatoeba "$out/cmn.txt" --exclude "$out/excluded.txt" --everyday "${EVERYDAY:-600000}"
  --held-out "${HELD_OUT:-1024}" --minutes "${MINUTES:-19}" --workers "${WORKERS:-12}" --batch-tokens "${BATCH_TOKENS:-131072}")
[ -z "${MIXTURE:-}" ] || options+=(--mixture "$MIXTURE")

draw_texts() {
  first="${PARTS%% *}"
  [ -f "$out/shards/manifest.json" ] || "$python" "$here/carry_shards.py" unpack "$first" "$out/shards"
  cp "$first/cmn.txt" "$first/excluded.txt" "$out"
  "$python" "$here/distill.py" "${options[@]}" --only-texts
}

case "$1" in
texts)
  flock "$out/lock" bash -c "$(declare -f draw_texts); $(declare -p options here out python); set -e; draw_texts"
  ;;
train)
  if [ ! -f "$out/teachers/use/config.json" ]; then
    mkdir -p "$out/teachers"
    find $PARTS -name 'teachers.tar.gz.*' -printf '%f %p\n' | sort | cut -d' ' -f2 | xargs cat | tar xz -C "$out/teachers"
  fi
  PARTS="$PARTS" "$here/distill.sh" texts # waits for texts that are being drawn
  "$python" "$here/distill.py" "${options[@]}" --teacher m3e="$out/teachers/m3e" --teacher use="$out/teachers/use" \
    --weights "${WEIGHTS:-1,1}"
  ;;
pack)
  last="$(ls -d "$out"/run/checkpoints/step-* | sort | tail -1)"
  [ ! -d "$out/run/model" ] || last="$out/run"
  rm -rf "$out/small-zh" && cp -r "$last/model" "$out/small-zh"
  (cd "$out" && "$python" "$here/../carry.py" pack packed/model small-zh)
  mkdir -p "$2" && cp "$out"/packed/model.tar.* "$out/run/metrics.jsonl" "$out/run/texts/mixture.npz" "$2"
  [ ! -f "$out/train.log" ] || cp "$out/train.log" "$2"
  ;;
esac
