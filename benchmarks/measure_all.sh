#!/usr/bin/env bash
# Makes all evidence and the recording again on a Hopper GPU, in about ten minutes:
#   benchmarks/measure_all.sh OUT COMMIT
# Runs the GPU tests first and stops if one fails. Then copy OUT/*.json to benchmarks/results/ and
# OUT/h200.jsonl.gz to tuner/recordings/, and run python benchmarks/render.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${1:?where to write the results}"
commit="${2:?the commit that is measured}"
python="${PYTHON:-python3}"
database="sqlite:///$out/tuner.db"
tuner() { "$python" -c 'import sys; from tuner.cli.main import main; sys.exit(main())' "$@"; }

mkdir -p "$out"
"$python" -m pytest -q -p no:cacheprovider -m gpu tests/kernels
# The evidence is that of a default search; the recording's shapes are searched for longer afterwards.
"$python" -m benchmarks.tune_times --device cuda:0 --commit "$commit" --keep "$out/tuner.db" \
  --out "$out/tune-times.json"
for protocol in hot cool; do
  tuner bench --shapes benchmarks/shapes/article.txt --device cuda:0 --db "$database" --article \
    --best-of-protocol --protocol "$protocol" --rounds 50 --commit "$commit" \
    --json "$out/article-$protocol.json"
done
"$python" -m benchmarks.verify_shapes --commit "$commit" --out "$out/verify-shapes.json"
"$python" -m benchmarks.sanitize --commit "$commit" --out "$out/sanitize.json"
recorded="sqlite:///$out/recorded.db"
tuner run --shapes examples/shapes.txt --device cuda:0 --db "$recorded" --trials 256
"$python" -m benchmarks.record --shapes examples/shapes.txt --db "$recorded" --out "$out/h200.jsonl.gz"
