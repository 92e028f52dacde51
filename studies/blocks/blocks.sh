#!/usr/bin/env bash
# Compares blocks (variants.py) on a GPU that is available for half an hour at a time. README.md lists the calls.
#   blocks.sh call SECONDS FOLDER   starts or resumes the trainings, waits, copies results to FOLDER every minute; ends after SECONDS
#   blocks.sh stop                  saves checkpoints and ends the trainings
#   blocks.sh pack FOLDER           copies the results once
# Trainings go on in the background between calls. BUDGET seconds after the first call they save and end. VARIANTS is a list with ;
# between the names; another list replaces the first, and trainings that are in both resume. PARTS are folders of carry_shards.py below
# DATA. BESIDE is a command to start beside the trainings; its results are copied from WORK/beside.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(realpath "$here/../..")"
python="${PYTHON:-python3}"
work="$(realpath -m "${WORK:-.cache/blocks}")"
data="${DATA:-.cache/blocks-data}"
parts="${PARTS:-0}"
shards="$work/shards-${parts// /-}"
first="relative; relative, prelude 1, coda 1, outer F/2; relative, ffn_groups 3"
second="relative, pre_norm; relative, gated_ffn; relative, prelude 1, ffn_groups 2; relative, groups 2"
third="relative, prelude 1; relative, gru, ffn_groups 3; relative, prelude 1, coda 1; relative, coda 1"
export PYTHONPATH="$root/src" PYTHONUNBUFFERED=1
mkdir -p "$work/beside" "$work/runs"

is_running() { ! flock -n "$work/lock" true; }
is_busy() { is_running || kill -0 "$(cat "$work/beside/pid" 2>/dev/null || echo 0x)" 2>/dev/null; }

unpack() {
  [ -f "$shards/manifest.json" ] || (cd "$data" && "$python" "$root/studies/carry_shards.py" unpack $parts "$shards")
}

share_gpu() { # several processes at once; without the daemon they take turns
  command -v nvidia-cuda-mps-control >/dev/null || return 0
  nvidia-cuda-mps-control -d || true
  timeout 60 "$python" -c 'import torch; torch.ones(1, device="cuda").sum().item()' || echo quit | nvidia-cuda-mps-control
}

seconds_left() { echo $(($(cat "$work/deadline") - $(date +%s))); }

train() {
  exec 9>"$work/lock"
  flock -n 9 || exit 0
  rm -f "$work/stop"
  share_gpu 9>&- & # the daemon must not inherit the lock
  unpack
  wait
  for attempt in 1 2 3; do
    if [ -f "$work/stop" ] || [ "$(seconds_left)" -lt 20 ]; then break; fi
    echo "attempt $attempt, $(seconds_left) s left"
    timeout --kill-after 60 "$(seconds_left)" "$python" "$root/studies/ablation.py" run "$shards" --runs "$work/runs" --results "$work/results.jsonl" \
      --shape small --batch 1024 --optimizer muon --learning-rate 1e-3 --tokens "${TOKENS:-300e6}" --evaluations "${EVALUATIONS:-6}" \
      --seeds "${SEEDS:-0}" --jobs "${JOBS:-3}" --keep --only "$(cat "$work/variants")" ${EXTRA:-} &
    echo $! >"$work/pid"
    ! wait $! || break
  done
  rm -f "$work/pid"
}

stop() {
  touch "$work/stop"
  [ ! -f "$work/pid" ] || kill -TERM "$(cat "$work/pid")" || true
  for _ in $(seq 60); do is_running || return 0; sleep 1; done
}

pack() {
  rm -rf "$work/out" && mkdir -p "$work/out" "$work/packed" "$1"
  "$python" "$root/studies/ablation.py" collect "$work/runs" "$work/results.jsonl" "$work/out/blocks.jsonl"
  find "$work/beside" -name '*.jsonl' -exec cp {} "$work/out" \;
  (cd "$work" && tar cJf out/logs.tar.xz --ignore-failed-read ./*.log $(find runs beside -name '*.log' -o -name metrics.jsonl))
  local names=()
  while IFS=$'\t' read -r name model; do
    rm -rf "$work/packed/$name" && cp -r "$model" "$work/packed/$name" && names+=("$name")
  done < <("$python" "$root/studies/ablation.py" best "$work/runs" --count "${MODELS:-2}")
  [ ${#names[@]} -eq 0 ] || (cd "$work/packed" && "$python" "$root/studies/carry.py" pack ../out/models "${names[@]}")
  cp "$work"/out/* "$1"
}

call() {
  local until=$((SECONDS + $1 - 25)) wanted="${VARIANTS:-}" packed=$SECONDS
  [ -f "$work/deadline" ] || echo $(($(date +%s) + ${BUDGET:-1560})) >"$work/deadline"
  [ -f "$work/results.jsonl" ] || cp "$root/studies/results/blocks.jsonl" "$work/results.jsonl" 2>/dev/null || true
  [ -n "$wanted" ] || wanted="$(cat "$work/variants" 2>/dev/null || echo "$first; $second; $third")"
  if [ "$wanted" != "$(cat "$work/variants" 2>/dev/null)" ]; then
    ! is_running || stop
    echo "$wanted" >"$work/variants"
  fi
  if ! is_running; then
    setsid nohup bash "$here/blocks.sh" train >>"$work/train.log" 2>&1 </dev/null &
  fi
  if [ -n "${BESIDE:-}" ]; then
    setsid nohup bash -c "$BESIDE" >>"$work/beside/beside.log" 2>&1 </dev/null &
    echo $! >"$work/beside/pid"
  fi
  sleep 3
  while [ $SECONDS -lt $until ] && is_busy; do
    sleep 5
    if [ $((SECONDS - packed)) -ge 60 ]; then
      pack "$2" >/dev/null 2>"$work/pack.log" || true
      packed=$SECONDS
    fi
  done
  pack "$2" || true
  tail -n 12 "$work/train.log" | cut -c1-400
  find "$work/runs" -name metrics.jsonl -mmin -3 -exec tail -qn 1 {} + | cut -c1-300
  nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
  echo "$(seconds_left) s left; $(is_running && echo training || echo "no training is running")"
}

"$@"
