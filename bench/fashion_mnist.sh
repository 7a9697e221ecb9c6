#!/usr/bin/env bash
# Test accuracy of the Fashion-MNIST CNN: three seeds in fp32, bf16 and fp16 (dynamic loss scale).
#
# Usage: bench/fashion_mnist.sh [--epochs N] [--samples N] [--seeds "0 1 2"] [--out DIR]
#   --epochs N    passes over the training images (default: that of the sample)
#   --samples N   only the first N images of each set (default: all)
#   --seeds "…"   seeds, of first weights, dropout and order of the data (default: "0 1 2")
#   --out DIR     where the runs and results go (default: build/bench/fashion_mnist)
#
# Writes results.json and results.md into DIR, and ends with 1 if a mean lies below 91 % or more
# than 0.3 points from that of fp32 (only judged over all images).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

options=() samples=60000 seeds="0 1 2" out=build/bench/fashion_mnist
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --epochs | --samples | --seeds | --out)
      [ $# -ge 2 ] || { echo "fashion_mnist: $1 wants a value" >&2; exit 2; }
      case "$1" in
        --epochs) options+=(--epochs "$2") ;;
        --samples) options+=(--samples "$2"); samples=$2 ;;
        --seeds) seeds=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2
      ;;
    *) echo "fashion_mnist: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
done

runs=()
for precision in fp32 bf16 fp16; do
  for seed in $seeds; do
    folder=$out/$precision-$seed
    rm -rf "$folder"
    echo "== $precision, seed $seed"
    samples/fashion_mnist/run.sh --precision "$precision" --seed "$seed" --out "$folder" \
      ${options[@]+"${options[@]}"}
    runs+=("$precision=$folder")
  done
done
"$python" scripts/compare_runs.py --json "$out/results.json" --markdown "$out/results.md" \
  "${runs[@]}"

[ "$samples" = 60000 ] || exit 0
"$python" - "$out/results.json" <<'PY'
import json, sys
means = {n: 100 * s["top1_mean"] for n, s in json.load(open(sys.argv[1]))["summary"].items()}
low = [n for n, mean in means.items() if mean < 91]
far = [n for n, mean in means.items() if abs(mean - means["fp32"]) > 0.3]
print("bars: at least 91 %: " + (f"missed by {', '.join(low)}" if low else "pass")
      + "; means within 0.3 points: " + (f"missed by {', '.join(far)}" if far else "pass"))
sys.exit(1 if low or far else 0)
PY
