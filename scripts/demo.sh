#!/usr/bin/env bash
# The main job: a CNN given as ONNX text is compiled and trained on Fashion-MNIST, in FP32 and in
# 16 bit, and the two are compared.
#
# Usage: scripts/demo.sh [--no-setup] [--quick] [--epochs N]
#   --no-setup   everything is installed already: leave out scripts/setup.sh
#   --quick      20 steps on a few images: shows that it works, not how well
#   --epochs N   passes over the training images (default: 5)
#
# The 16-bit format is bf16 where the CPU computes in it (avx512_bf16), else fp16. The runs lie in
# build/demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

setup=1 epochs=5 samples=60000
while [ $# -gt 0 ]; do
  case "$1" in
    --no-setup) setup=0 ;;
    --quick) epochs=1 samples=2560 ;;
    --epochs)
      [ $# -ge 2 ] || { echo "demo: --epochs wants a number" >&2; exit 2; }
      epochs=$2
      shift
      ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "demo: unknown option '$1' (see scripts/demo.sh --help)" >&2; exit 2 ;;
  esac
  shift
done

say() { printf '\n== %s\n' "$*"; }

if [ "$setup" = 1 ]; then
  say "set-up"
  scripts/setup.sh
fi
say "build"
build_preset release halfnote

mixed=fp16
why="this CPU has no avx512_bf16"
if grep -qw avx512_bf16 /proc/cpuinfo; then
  mixed=bf16
  why="this CPU has avx512_bf16"
fi
begin=$SECONDS
for precision in fp32 "$mixed"; do
  say "training in $precision"
  rm -rf "build/demo/$precision"
  samples/fashion_mnist/run.sh --precision "$precision" --epochs "$epochs" --samples "$samples" \
    --out "build/demo/$precision"
done

say "FP32 against $mixed ($why)"
"$python" scripts/compare_runs.py "fp32=build/demo/fp32" "$mixed=build/demo/$mixed"
echo "the two runs took $((SECONDS - begin)) s; models, metrics and checkpoints are in build/demo/"
