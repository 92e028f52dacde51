#!/usr/bin/env bash
# What the built-in model does, offline and without torch, in seconds. `make run` calls it.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cp "$here/../examples/notes.txt" .

show() {  # a command as one would type it, then what it prints
  printf '\n$'
  for word in "$@"; do
    case "$word" in *[!a-zA-Z0-9._/-]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$@"
}

show albertkit models
show albertkit embed "A man plays the guitar." "Someone makes music." --dim 6
show albertkit similar "A man plays the guitar." "Someone makes music." "The train was late." "My bus did not come on time."
show albertkit fill "paris is the [MASK] of france." -k 3
show albertkit index notes.txt -o notes.idx
show albertkit search notes.idx "can I get my money back?" "my screen is black" -k 2
