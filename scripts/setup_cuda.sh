#!/usr/bin/env bash
# What a build for NVIDIA GPUs needs: CUDA 13 (nvcc, runtime, cuBLAS, NVRTC), cuDNN 9 and the
# headers of the cuDNN frontend.
#
# Usage: scripts/setup.sh --cuda (which calls this)
#
# A toolkit that is installed already is used as it is: nvcc of CUDACXX, of PATH or in
# /usr/local/cuda, if it is version 13 and the headers of all libraries are there, those of cuDNN in
# version 9. Otherwise the compiler and the libraries come from pinned wheels: 0.98 GB to download,
# 1.6 GB in .cache/cuda-13.0, with .cache/cuda as their short name. HALFNOTE_CUDA_TOOLKIT=wheels
# takes the wheels in any case, HALFNOTE_CUDA_TOOLKIT=FOLDER this toolkit or none.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${HALFNOTE_CACHE:-$PWD/.cache}
prefix=$cache/cuda-13.0
wanted=${HALFNOTE_CUDA_TOOLKIT:-}
say() { printf 'setup: %s\n' "$*"; }
. scripts/fetch.sh

# Name, version, SHA-256 of the wheel for x86-64.
wheels=(
  "nvidia-cuda-nvcc 13.0.88 56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"
  "nvidia-cuda-crt 13.0.88 2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"
  "nvidia-nvvm 13.0.88 c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"
  "nvidia-cuda-runtime 13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"
  "nvidia-cuda-cccl 13.0.85 e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"
  "nvidia-cuda-nvrtc 13.0.88 ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"
  "nvidia-cublas 13.1.0.3 ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171"
  "nvidia-cudnn-cu13 9.19.0.56 d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf"
)

# lacks FOLDER: what the toolkit in it has not; nothing if it is whole.
lacks() {
  local folder=$1 header found
  [ -x "$folder/bin/nvcc" ] || { echo "bin/nvcc"; return; }
  found=$("$folder/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  [ "$found" = 13 ] || { echo "nvcc 13 (it has ${found:-none that answers})"; return; }
  for header in cuda_runtime_api.h cublasLt.h nvrtc.h cudnn_version.h nv/target; do
    [ -n "$(header_in "$folder" "$header")" ] || { echo "$header"; return; }
  done
  header=$(header_in "$folder" cudnn_version.h)
  found=$(sed -n 's/^#define CUDNN_MAJOR *\([0-9]*\).*/\1/p' "$header")
  [ "$found" = 9 ] || echo "cuDNN 9 ($header is of ${found:-none that says its version})"
}

# header_in FOLDER HEADER: where it lies, for the toolkit in this folder.
header_in() {
  local folder
  for folder in "$1/include" "$1/include/cccl" /usr/include "/usr/include/$(uname -m)-linux-gnu"; do
    [ ! -f "$folder/$2" ] || { echo "$folder/$2"; return; }
  done
}

# Prints the folder of a whole installed toolkit, and says of the others what they lack.
find_toolkit() {
  local nvcc folder missing
  local candidates=("${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc)
  [ -z "$wanted" ] || candidates=("$wanted/bin/nvcc")
  for nvcc in "${candidates[@]}"; do
    [ -n "$nvcc" ] && { [ -x "$nvcc" ] || [ -n "$wanted" ]; } || continue
    folder=$(dirname "$(dirname "$(readlink -f "$nvcc" || echo "$nvcc")")")
    missing=$(lacks "$folder")
    [ -n "$missing" ] || { echo "$folder"; return; }
    say "CUDA: $folder lacks $missing" >&2
  done
}

# unpack WHEEL: what lies below nvidia/cu13 and nvidia/cudnn goes to one folder, programs stay
# programs.
unpack() {
  /usr/bin/python3 - "$1" "$prefix" <<'PY'
import pathlib, shutil, sys, zipfile
wheel, prefix = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for entry in wheel.infolist():
    parts = entry.filename.split("/")
    if entry.is_dir() or parts[0] != "nvidia" or len(parts) < 4:
        continue
    to = prefix.joinpath(*parts[2:])
    to.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(entry) as source, open(to, "wb") as target:
        shutil.copyfileobj(source, target)
    if "bin" in parts[2:4]:
        to.chmod(0o755)
PY
}

install_wheels() {
  if [ -f "$prefix/.complete" ]; then
    say "CUDA 13.0: there"
    return
  fi
  if [ "$(uname -m)" != x86_64 ]; then
    say "CUDA 13.0: the pinned wheels are for x86_64, this is $(uname -m): install a toolkit" >&2
    exit 1
  fi
  rm -rf "$prefix" && mkdir -p "$prefix"
  local row name version sha file
  for row in "${wheels[@]}"; do
    read -r name version sha <<<"$row"
    fetch "$name==$version" "$sha" "$cache/download/cuda" --only-binary=:all:
    file=$(find "$cache/download/cuda" -type f -name '*.whl')
    say "CUDA 13.0: $name $version, $(du -m "$file" | cut -f1) MB"
    unpack "$file"
  done
  rm -rf "$cache/download/cuda"
  # Wheels hold no symbolic links, and nvcc looks for its libraries in lib64.
  ln -sfn lib "$prefix/lib64"
  local library
  for library in "$prefix"/lib/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  touch "$prefix/.complete"
}

# The headers are in wheels for a Python each, all alike: this one's serves any machine.
install_frontend() {
  local version=1.18.0 folder=$cache/cudnn-frontend-1.18.0
  if [ -f "$folder/include/cudnn_frontend.h" ]; then
    say "cuDNN frontend $version: there"
    return
  fi
  fetch "nvidia-cudnn-frontend==$version" \
    382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4 \
    "$cache/download/cudnn-frontend" --only-binary=:all: --python-version 3.11 \
    --implementation cp --abi cp311 --platform manylinux_2_28_x86_64
  rm -rf "$folder" && mkdir -p "$folder"
  (cd "$folder" && /usr/bin/python3 -m zipfile -e "$cache"/download/cudnn-frontend/*.whl .)
  rm -rf "$cache/download/cudnn-frontend" "$folder/cudnn"
  say "cuDNN frontend $version: installed"
}

install_frontend
if [ "$wanted" != wheels ]; then
  toolkit=$(find_toolkit)
  if [ -n "$toolkit" ]; then
    say "CUDA: $("$toolkit/bin/nvcc" --version | sed -n 's/.*release \([^,]*\),.*/\1/p')" \
      "in $toolkit"
    ln -sfn "$toolkit" "$cache/cuda"
    exit 0
  fi
  if [ -n "$wanted" ]; then
    say "CUDA: HALFNOTE_CUDA_TOOLKIT names no whole toolkit; 'wheels' installs one" >&2
    exit 1
  fi
fi
install_wheels
ln -sfn cuda-13.0 "$cache/cuda"
say "CUDA 13.0: $(du -sm "$prefix" | cut -f1) MB in $prefix"
