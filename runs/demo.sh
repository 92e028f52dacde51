#!/usr/bin/env bash
# A demo of the built-in models, offline and without torch, in seconds. `make run` calls it.
set -euo pipefail
examples="$(cd "$(dirname "$0")/../examples" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cp "$examples"/{notes.txt,messages.tsv,messages-dev.tsv} .

show() {  # a title and a command as you would type it, then its output
  printf '\n# %s\n$' "$1"
  shift
  for word in "$@"; do
    case "$word" in *[!a-zA-Z0-9._/-]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$@" 2>errors || { cat errors >&2; exit 1; }
}

show "A sentence vector, cut to 6 numbers" \
  albertkit embed "A man plays the guitar." --dim 6
show "Similarity: 1 is the same meaning, 0 is unrelated" \
  albertkit similar "A man plays the guitar." "Someone makes music." "The train was late." "My bus did not come on time."
show "The same in Chinese" \
  albertkit similar "我想退货" "怎么把东西退掉" "快递什么时候到" -m small-zh
show "The likeliest words for a mask" \
  albertkit fill "paris is the [MASK] of france." -k 3
show "Search 16 notes by meaning and by words" \
  albertkit index notes.txt -o notes.idx
show "The score is the cosine of query and note" \
  albertkit search notes.idx "can I get my money back?" "my screen is black" -k 1
show "A classifier, trained on 120 messages to a shop" \
  albertkit finetune classify messages.tsv --dev messages-dev.tsv -o messages --freeze -m small
show "Its predictions for new messages" \
  albertkit classify -m messages "Where is my parcel?" "The lid was cracked." "I want my money back."

cat <<'END'

# What to type next
. .venv/bin/activate
albertkit finetune classify examples/messages.tsv -o messages --freeze
albertkit explain -m messages "Where is my parcel?"
albertkit serve messages
# then open http://127.0.0.1:8080/ in a browser
END
