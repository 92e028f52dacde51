#!/usr/bin/env bash
# Compares blocks (variants.py) on a GPU that is available for half an hour at a time. README.md lists the calls, ../stretch.sh
# the verbs. VARIANTS is a list with ; between the names; another list replaces the first, and trainings that are in both
# resume. PARTS are folders of carry_shards.py below DATA.
here="$(cd "$(dirname "$0")" && pwd)"
work="$(realpath -m "${WORK:-.cache/blocks}")"
source "$here/../stretch.sh"
data="${DATA:-.cache/blocks-data}"
parts="${PARTS:-0}"
shards="$work/shards-${parts// /-}"
first="relative; relative, prelude 1, coda 1, outer F/2; relative, ffn_groups 3"
second="relative, pre_norm; relative, gated_ffn; relative, prelude 1, ffn_groups 2; relative, groups 2"
third="relative, prelude 1; relative, gru, ffn_groups 3; relative, prelude 1, coda 1; relative, coda 1"
mkdir -p "$work/runs"

prepare() {
  [ -f "$shards/manifest.json" ] || (cd "$data" && "$python" "$root/studies/carry_shards.py" unpack $parts "$shards")
}

train() {
  run "$python" "$root/studies/ablation.py" run "$shards" --runs "$work/runs" --results "$work/results.jsonl" \
    --shape small --batch 1024 --optimizer muon --learning-rate 1e-3 --tokens "${TOKENS:-300e6}" --evaluations "${EVALUATIONS:-6}" \
    --seeds "${SEEDS:-0}" --jobs "${JOBS:-3}" --keep --only "$(cat "$work/variants")" ${EXTRA:-}
}

collect() {
  local names=()
  mkdir -p "$work/packed"
  "$python" "$root/studies/ablation.py" collect "$work/runs" "$work/results.jsonl" "$work/out/blocks.jsonl"
  while IFS=$'\t' read -r name model; do
    rm -rf "$work/packed/$name" && cp -r "$model" "$work/packed/$name" && names+=("$name")
  done < <("$python" "$root/studies/ablation.py" best "$work/runs" --count "${MODELS:-2}")
  [ ${#names[@]} -eq 0 ] || (cd "$work/packed" && "$python" "$root/studies/carry.py" pack ../out/models "${names[@]}")
}

if [ "${1:-}" = call ]; then
  wanted="${VARIANTS:-$(cat "$work/variants" 2>/dev/null || echo "$first; $second; $third")}"
  [ -f "$work/results.jsonl" ] || cp "$root/studies/results/blocks.jsonl" "$work/results.jsonl" 2>/dev/null || true
  if [ "$wanted" != "$(cat "$work/variants" 2>/dev/null)" ]; then
    ! is_running || stop
    echo "$wanted" >"$work/variants"
  fi
fi
"$@"
