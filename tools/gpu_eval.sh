#!/bin/sh
# Measure the time to the first token on an accelerator; everything lands in one folder.
#
#   tools/gpu_eval.sh OUT
#
# OUT gets environment.txt, a folder for each number of pages with ttft.json and ttft.md, and their tables in ttft.md.
# Nothing is downloaded besides the package itself where qvpic is not installed (then into OUT/venv). Variables:
#   DEVICE     cuda by default; cpu works too, slowly
#   DTYPE      bfloat16 by default
#   GEOMETRY   glm-4.1v-9b by default
#   SCALE      share of the layers, 1 by default
#   PAGES      numbers of pages, "10 4 20" by default; later ones are left out when time runs short
#   ROUNDS     of timing, 10 by default
#   LIMIT      seconds for everything, 540 by default
#   QVPIC      the command, qvpic by default
set -eu

if [ $# -ne 1 ]; then
    echo "usage: tools/gpu_eval.sh OUT" >&2
    exit 2
fi
out=$1
mkdir -p "$out"
started=$(date +%s)

qvpic=${QVPIC:-qvpic}
if [ -z "${QVPIC:-}" ] && ! command -v qvpic > /dev/null; then
    # A torch that is installed already fits the machine's driver, so it is kept.
    [ -d "$out/venv" ] || python3 -m venv --system-site-packages "$out/venv"
    "$out/venv/bin/python" -m pip install --quiet "$(dirname "$0")/.."
    qvpic=$out/venv/bin/qvpic
fi

{
    uname -a
    if command -v nvidia-smi > /dev/null; then nvidia-smi; else echo "no nvidia-smi"; fi
} > "$out/environment.txt"

rm -f "$out/ttft.md" # of an earlier run
last=0
last_pages=1
for pages in ${PAGES:-10 4 20}; do
    left=$((${LIMIT:-540} - $(date +%s) + started))
    # Attention grows faster than the number of pages.
    needed=$((last * pages * 3 / (last_pages * 2)))
    if [ "$left" -le "$needed" ]; then
        echo "$pages pages are left out: $left seconds are left, and they may take $needed." >&2
        continue
    fi
    before=$(date +%s)
    timeout "$left" $qvpic bench ttft --geometry "${GEOMETRY:-glm-4.1v-9b}" --scale "${SCALE:-1}" --pages "$pages" \
        --device "${DEVICE:-cuda}" --dtype "${DTYPE:-bfloat16}" --rounds "${ROUNDS:-10}" --out "$out/pages-$pages" \
        > /dev/null || {
        code=$?
        if [ "$code" -eq 124 ]; then echo "$pages pages: stopped after $left seconds; raise LIMIT." >&2; fi
        exit "$code"
    }
    last=$(($(date +%s) - before))
    last_pages=$pages
    { cat "$out/pages-$pages/ttft.md" && echo; } | tee -a "$out/ttft.md"
done
