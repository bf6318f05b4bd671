#!/bin/sh
# Train a reader on an accelerator, export it, and measure it; everything lands in one folder.
#
#   tools/gpu_train_reader.sh OUT
#
# Run it again with the same OUT to go on where it stopped. Variables:
#   DEVICE     cuda:0 by default; cpu works too, slowly
#   MINUTES    of training in this run, 8 by default
#   READER     smolglyph for the reader with SmolLM2 inside; the demo reader by default
#   RECIPE     TOML file of stages, by default the package's own
#   QUESTIONS  per cell of the quick measurement at the end, 100 by default
#   QVPIC      the command, qvpic by default
set -eu

if [ $# -ne 1 ]; then
    echo "usage: tools/gpu_train_reader.sh OUT" >&2
    exit 2
fi
out=$1
qvpic=${QVPIC:-qvpic}
mkdir -p "$out"

reader=${READER:-demo}
case $reader in
demo) command="$qvpic reader" ;;
smolglyph) command="$qvpic reader smolglyph" ;;
*)
    echo "READER is demo or smolglyph, not $reader." >&2
    exit 2
    ;;
esac

$command train "$out/run" --device "${DEVICE:-cuda:0}" --minutes "${MINUTES:-8}" \
    ${RECIPE:+--recipe "$RECIPE"} >> "$out/train.log"
tail -n 3 "$out/train.log"
$command export "$out/run" "$out/reader"
if [ "$reader" = smolglyph ]; then
    set -- --run "$out/run"
else
    # Answers of an older state of the run would be taken for this one's.
    rm -f "$out/answers.jsonl"
    set -- --pages 1,4,8 --tables letters,pages --results "$out/answers.jsonl"
fi
$command eval "$out/reader" --questions "${QUESTIONS:-100}" "$@" > "$out/tables.md"
cat "$out/tables.md"
