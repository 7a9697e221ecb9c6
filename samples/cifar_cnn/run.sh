#!/usr/bin/env bash
# Compiles the CIFAR CNN for one precision and trains it.
#
# Usage: samples/cifar_cnn/run.sh [options] [-- options of `halfnote run`]
#   --precision P   fp32, bf16 or fp16 (default: fp32)
#   --epochs N      passes over the training images (default: 4)
#   --seed S        of first weights and order of the data (default: 0)
#   --samples N     only the first N images of each set (default: all)
#   --out DIR       folder for the artifact, the run and its log (default: runs/cifar-P-S)
#   --cifar10 DIR   folder with the CIFAR-10 binary files (data_batch_1.bin …, test_batch.bin);
#                   without it: Fashion-MNIST from Debian's dataset-fashion-mnist, resized to 32x32
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$here/../../build/release/bin:$PATH"

precision=fp32 epochs=4 seed=0 samples="" out="" cifar10=""
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    --precision | --epochs | --seed | --samples | --out | --cifar10)
      [ $# -ge 2 ] || { echo "run.sh: $1 wants a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *) echo "run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
done
out=${out:-runs/cifar-$precision-$seed}

if [ -n "$cifar10" ]; then
  data=(--data "cifar10:$cifar10" --normalize 0.491/0.482/0.447,0.247/0.243/0.262)
else
  echo "run.sh: no --cifar10 DIR: training on Fashion-MNIST, resized to 32x32 and 3 channels" >&2
  data=(--data mnist:/usr/share/datasets/fashion-mnist --normalize 0.286,0.353 --resize bilinear)
fi

mkdir -p "$out"
halfnote compile "$here/model.onnxtxt" -o "$out/artifact.hn.onnx" --precision "$precision" \
  --loss cross_entropy --optimizer adam --lr 1e-3 --seed "$seed"
halfnote run "$out/artifact.hn.onnx" "${data[@]}" --batch 128 --epochs "$epochs" \
  ${samples:+--limit-samples "$samples"} --seed "$seed" --run-dir "$out/run" \
  --export "$out/model.onnx" --progress plain "$@" | tee "$out/log.txt"
