# Trainings in the background on a GPU that is available for half an hour at a time; sourced by blocks/blocks.sh and
# small-zh/further.sh. The script that sources it sets `work`, defines three functions and ends with "$@":
#   prepare   unpacks data; does nothing the second time
#   train     the trainings, from where they were left. It starts programs with `run`, so that they end in time
#   collect   copies what should come back into $work/out
# Its verbs:
#   call SECONDS FOLDER   starts or resumes `train`, waits, copies results to FOLDER every minute; ends after SECONDS
#   stop                  saves checkpoints and ends the trainings
#   pack FOLDER           copies the results once
# BUDGET seconds after the first call the trainings save and end. BESIDE is a command to start beside them, in one call
# only; its results are the .jsonl files of $work/beside. Keep all settings the same in all calls.
set -euo pipefail
root="$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")"
python="${PYTHON:-python3}"
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$work/beside"

is_running() { ! flock -n "$work/lock" true; }
is_busy() { is_running || kill -0 "$(cat "$work/beside/pid" 2>/dev/null || echo 0x)" 2>/dev/null; }
seconds_left() { echo $(($(cat "$work/deadline") - $(date +%s))); }

share_gpu() { # several processes at once; without the daemon they take turns
  command -v nvidia-cuda-mps-control >/dev/null || return 0
  nvidia-cuda-mps-control -d || true
  timeout 60 "$python" -c 'import torch; torch.ones(1, device="cuda").sum().item()' || echo quit | nvidia-cuda-mps-control
}

run() { # a program of `train`; it gets SIGTERM from `stop` and at the deadline
  if [ -f "$work/stop" ] || [ "$(seconds_left)" -lt 5 ]; then return 1; fi
  timeout --kill-after 60 "$(seconds_left)" "$@" &
  echo $! >"$work/pid"
  wait $!
}

work() { # detached
  exec 9>"$work/lock"
  flock -n 9 || exit 0
  rm -f "$work/stop"
  share_gpu 9>&- & # the daemon must not inherit the lock
  prepare
  wait
  for attempt in 1 2 3; do
    if [ -f "$work/stop" ] || [ "$(seconds_left)" -lt 20 ]; then break; fi
    echo "attempt $attempt, $(seconds_left) s left"
    ! train || break
  done
  rm -f "$work/pid"
}

stop() {
  touch "$work/stop"
  [ ! -f "$work/pid" ] || kill -TERM "$(cat "$work/pid")" || true
  for _ in $(seq 60); do is_running || return 0; sleep 1; done
}

pack() {
  rm -rf "$work/out" && mkdir -p "$work/out" "$1"
  collect
  find "$work/beside" -name '*.jsonl' -exec cp {} "$work/out" \;
  (cd "$work" && tar cJf out/logs.tar.xz --ignore-failed-read $(find . -path ./out -prune -o \( -name '*.log' -o -name metrics.jsonl \) -print))
  cp "$work"/out/* "$1"
}

call() {
  local until=$((SECONDS + $1 - 25)) packed=$SECONDS
  [ -f "$work/deadline" ] || echo $(($(date +%s) + ${BUDGET:-1560})) >"$work/deadline"
  if ! is_running; then
    setsid nohup bash "$0" work >>"$work/train.log" 2>&1 </dev/null &
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
  find "$work" -name metrics.jsonl -mmin -3 -exec tail -qn 1 {} + | cut -c1-300
  nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader 2>/dev/null || true
  echo "$(seconds_left) s left; $(is_running && echo training || echo "no training is running")"
}
