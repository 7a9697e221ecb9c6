#!/usr/bin/env bash
# Compiles the Fashion-MNIST CNN for one precision and trains it.
#
# Usage: samples/fashion_mnist/run.sh [options] [-- options of `halfnote run`]
#   --precision P   fp32, bf16 or fp16 (default: fp32)
#   --epochs N      passes over the training images (default: 5)
#   --seed S        of first weights, dropout and order of the data (default: 0)
#   --samples N     only the first N images of each set (default: all 60,000)
#   --out DIR       folder for the artifact, the run and its log (default: runs/fashion-P-S)
#   --data DIR      folder with the four idx files (default: that of Debian's dataset-fashion-mnist)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$here/../../build/release/bin:$PATH"

precision=fp32 epochs=5 seed=0 samples=60000 out="" data=/usr/share/datasets/fashion-mnist
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    --precision | --epochs | --seed | --samples | --out | --data)
      [ $# -ge 2 ] || { echo "run.sh: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
done
out=${out:-runs/fashion-$precision-$seed}
batch=128

mkdir -p "$out"
# The learning rate rises for a tenth of the steps and falls along a cosine to 0 at the last.
steps=$((epochs * (samples / batch)))
halfnote compile "$here/model.onnxtxt" -o "$out/artifact.hn.onnx" --precision "$precision" \
  --loss cross_entropy --optimizer adamw --lr 2e-3 \
  --weight-decay 0.01 --no-decay '.*_(bias|scale)' \
  --schedule cosine --warmup $((steps / 10)) --schedule-steps "$steps" --seed "$seed"
# Mean and standard deviation of the training images.
halfnote run "$out/artifact.hn.onnx" --data "mnist:$data" --normalize 0.286,0.353 \
  --batch "$batch" --epochs "$epochs" --limit-samples "$samples" --seed "$seed" \
  --run-dir "$out/run" --export "$out/model.onnx" --progress plain "$@" | tee "$out/log.txt"
