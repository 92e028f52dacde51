#!/usr/bin/env bash
# Trains small-zh-pretrained further on a GPU that is available for half an hour at a time, then fine-tunes three Chinese sets
# from the result, before and after MLM on the texts of their training examples. ../stretch.sh lists the verbs; `call` takes
# .cache/zh-data and .cache/carried along. One more verb, for the machine that has the texts:
#   data TEXTS TASKS   TEXTS is a folder with zhwiki-*.txt.xz, TASKS one of labelled sets (../tasksets.py). Writes shards packed
#                      by ../carry_shards.py into DATA/0, DATA/1, …, and CARRIED/tasks.tar.xz and CARRIED/site.tar.xz (pytest)
here="$(cd "$(dirname "$0")" && pwd)"
work="$(realpath -m "${WORK:-.cache/zh}")"
source "$here/../stretch.sh"
data="${DATA:-.cache/zh-data}"
carried="${CARRIED:-.cache/carried}"
start="${START:-$root/src/albertkit/models/small-zh-pretrained}"
albertkit=("$python" -m albertkit.cli.entry_point)
"$python" -c "import click, tqdm" 2>/dev/null || export PYTHONPATH="$PYTHONPATH:$work/site"
sets="${SETS:-sst-2 cola mrpc rte sts-b conll2003 atis snips woz2 clinc150 chnsenticorp afqmc cluener}"

data() {
  mkdir -p "$data" "$carried"
  [ -f "$work/made/manifest.json" ] || "${albertkit[@]}" corpus "$1"/zhwiki-*.txt.xz -o "$work/made" --tokenizer "$start" --shard-tokens "${SHARD_TOKENS:-2000000}"
  [ -f "$data/0/manifest.json" ] || "$python" "$root/studies/carry_shards.py" pack "$work/made" "$data"
  [ -f "$carried/tasks.tar.xz" ] || tar cJf "$carried/tasks.tar.xz" -C "$2" $sets
  if [ ! -f "$carried/site.tar.xz" ]; then # for Python 3.12, which the machine with the GPU has
    "$python" -m pip install -q --target "$work/site" --python-version 3.12 --only-binary :all: pytest hypothesis click tqdm google-crc32c
    tar cJf "$carried/site.tar.xz" -C "$work" site
  fi
  du -m "$data"/* "$carried"/*
}

prepare() {
  [ -f "$work/shards/manifest.json" ] || "$python" "$root/studies/carry_shards.py" unpack "$data"/[0-9]* "$work/shards"
  [ -d "$work/site" ] || tar xJf "$carried/site.tar.xz" -C "$work"
  [ -d "$work/tasks" ] || (mkdir -p "$work/unpacked" && tar xJf "$carried/tasks.tar.xz" -C "$work/unpacked" && mv "$work/unpacked" "$work/tasks")
}

pretrain() { # NAME SHARDS START BUDGET…: MLM from another model
  local name=$1 shards=$2 from=$3 careful=""
  [ "$attempt" = 1 ] || careful="--compile no --micro-batch-size 512" # after a failure
  [ -d "$work/$name/model" ] || run "${albertkit[@]}" pretrain "$shards" -o "$work/$name" --model "$from" --batch-size "${BATCH:-1024}" \
    --optimizer muon --save-minutes 1 --resume "${@:4}" $careful ${EXTRA:-} || true
  [ -d "$work/$name/model" ]
}

train() {
  pretrain further "$work/shards" "$start" --minutes "${MINUTES:-10}" --learning-rate "${RATE:-5e-4}" --warmup-ratio 0.03 \
    --lengths "${LENGTHS:-128:0.4,256:0.6}" --short-ratio 0.3 --single-ratio 0.4 --evaluations 10 || return 1
  [ -f "$work/texts.txt" ] || "$python" "$here/task_texts.py" "$work/tasks" "$work/texts.txt" || return 1
  [ -f "$work/task-shards/manifest.json" ] || run "${albertkit[@]}" corpus "$work/texts.txt" -o "$work/task-shards" --tokenizer "$start" --min-tokens 4 || return 1
  pretrain adapted "$work/task-shards" "$work/further/model" --tokens "${ADAPT_TOKENS:-40000000}" --learning-rate 3e-4 --warmup-ratio 0.05 \
    --sop-weight 0 --evaluations 4 --compile no || return 1
  run "$python" "$root/studies/curves.py" "$work/tasks" "$work/starts.jsonl" --plan starts --start further="$work/further/model" \
    --start adapted="$work/adapted/model" --workers "${WORKERS:-9}" --minutes $((($(seconds_left) - 150) / 60)) ${CURVES:-}
}

collect() {
  local name last
  mkdir -p "$work/packed"
  for name in further adapted; do
    last="$(ls -d "$work/$name"/checkpoints/step-*/model "$work/$name/model" 2>/dev/null | tail -n 1)"
    [ -z "$last" ] || (cd "$work/packed" && rm -rf "$name" && cp -r "$last" "$name" && "$python" "$root/studies/carry.py" pack "../out/$name" "$name")
  done
  cp "$work"/*.jsonl "$work/out" 2>/dev/null || true
}

"$@"
