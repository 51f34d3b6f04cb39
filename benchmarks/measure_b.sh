#!/usr/bin/env bash
# Makes the evidence of the kernel for every kind of shape, on a Hopper GPU:
#   benchmarks/measure_b.sh OUT COMMIT [STAGE...]
# Without stages all run, in this order; with the list of them, only those, so that they may be run
# one at a time. Everything is kept in OUT: a stage that was cut short is run again, and `tune`,
# `heldout`, `layers`, `record` and the tuning of `intervals` then go on where they stopped. What a
# stage takes on an H200 with 16 cores stands beside it as an expectation. Then copy OUT/*.json to
# benchmarks/results/ and OUT/h200.jsonl.gz to tuner/recordings/, and run python benchmarks/render.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:?where to write the results}"
commit="${2:?the commit that is measured}"
shift 2
python="${PYTHON:-python3}"
database="sqlite:///$(mkdir -p "$out" && cd "$out" && pwd)/tuner.db"
shapes=benchmarks/shapes
trials="${TRIALS:-256}"
tuner() { "$python" -c 'import sys; from tuner.cli.main import main; sys.exit(main())' "$@"; }
measure() { "$python" -m "benchmarks.$1" --commit "$commit" "${@:2}"; }
race() { # race LIST NAME PROTOCOL [OPTION...]
  tuner bench --shapes "$shapes/$1.txt" --device cuda:0 --db "$database" --protocol "$3" \
    --rounds 50 --commit "$commit" --json "$out/$2-$3.json" "${@:4}"
}

# 1 min: the kernel is right before anything is timed.
stage_tests() { "$python" -m pytest -q -p no:cacheprovider -m gpu tests/kernels; }
# 90 s, 90 s and 70 s: every path, many shapes, and the sanitizer.
stage_soak() { measure soak --out "$out/soak.json"; }
stage_verify() { measure verify_shapes --out "$out/verify-shapes.json"; }
stage_sanitize() { measure sanitize --out "$out/sanitize.json"; }
# 8 min: the thirty-four shapes; the article's are among them.
stage_tune() {
  tuner run --shapes "$shapes/mixed34.txt" --device cuda:0 --db "$database" --trials "$trials"
}
# 4 min: winners again, with fresh samples.
stage_race() {
  for protocol in hot cool; do
    race mixed34 mixed34 "$protocol" --best-of-protocol
    race article article "$protocol" --best-of-protocol --article
  done
}
# 6 min: held-out shapes, by the default command and into a database of their own.
stage_heldout() {
  local own="${database%tuner.db}heldout.db"
  tuner run --shapes "$shapes/heldout20.txt" --device cuda:0 --db "$own"
  for protocol in hot cool; do
    tuner bench --shapes "$shapes/heldout20.txt" --device cuda:0 --db "$own" --rounds 50 \
      --protocol "$protocol" --commit "$commit" --json "$out/heldout20-$protocol.json"
  done
}
# 1 min.
stage_chains() { measure chains --db "$database" --out "$out/chains.json"; }
# 8 min and 4 min: the fifty shapes of `invariance` are tuned first; without, it models configs.
stage_layers() {
  "$python" -m benchmarks.invariance --list >"$out/layers.txt"
  tuner run --shapes "$out/layers.txt" --device cuda:0 --db "$database"
}
stage_invariance() { measure invariance --db "$database" --out "$out/invariance.json"; }
# 9 min and 21 min: three layers at a dozen Ms, then every M from 1 to 512. STEP=4 takes 7 instead.
stage_intervals() {
  tuner run --layer 6144,4096 --layer 28672,4096 --layer 4096,14336 --m 1..512 \
    --device cuda:0 --db "$database"
  measure layers --db "$database" --step "${STEP:-1}" --out "$out/layers.json"
}
# 15 min: may be cut short and run again.
stage_record() {
  "$python" -m benchmarks.record --shapes "$shapes/mixed34.txt" --db "$database" \
    --count "${COUNT:-240}" --out "$out/h200.jsonl.gz"
}
# 3 min, most of it without the GPU.
stage_cover() {
  measure menu_cover --recording "$out/h200.jsonl.gz" --compile --out "$out/menu-cover.json"
}
# 30 s.
stage_roofline() {
  measure roofline --measure --out "$out/roofline-peaks.json"
  measure roofline --evidence "$out/mixed34-hot.json" --peaks "$out/roofline-peaks.json" \
    --out "$out/roofline.json"
}
# 1 min.
stage_kernels() { measure library_kernels --out "$out/library-kernels.json"; }
# 3 min.
stage_times() { measure tune_times --device cuda:0 --out "$out/tune-times.json"; }

all=(tests soak verify sanitize tune race heldout chains layers invariance intervals record cover roofline
  kernels times)
stages=("$@")
((${#stages[@]})) || stages=("${all[@]}")
for stage in "${stages[@]}"; do
  declare -F "stage_$stage" >/dev/null || { echo "no stage $stage; stages: ${all[*]}" >&2; exit 2; }
done
for stage in "${stages[@]}"; do
  echo "== $stage, $(date +%T)"
  "stage_$stage"
done
