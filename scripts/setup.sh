#!/usr/bin/env bash
# Installs everything that halfnote needs on a bare Debian 12: Debian packages, the ONNX C++
# library and oneDNN.
#
# Usage: scripts/setup.sh [--no-system] [--no-judges] [--fuzz] [--cuda]
#   --no-system   do not call apt-get (the packages are there, or you are not root)
#   --no-judges   leave out what only the tests need: Python packages (numpy, onnx, onnxruntime) and
#                 ONNX's own tests
#   --fuzz        also the compiler that scripts/fuzz.sh wants: clang 14 with libFuzzer
#   --cuda        also what a build for GPUs needs: an installed CUDA 13 toolkit with cuDNN 9, or
#                 else its wheels, 0.98 GB (scripts/setup_cuda.sh)
#
# What is built or downloaded goes to .cache/ (HALFNOTE_CACHE names another folder). Running it
# again does only what is missing. Nothing but --cuda needs CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${HALFNOTE_CACHE:-$PWD/.cache}
export CCACHE_DIR=${CCACHE_DIR:-$cache/ccache}
system=1
judges=1
fuzz=0
cuda=0
for argument in "$@"; do
  case "$argument" in
    --no-system) system=0 ;;
    --no-judges) judges=0 ;;
    --fuzz) fuzz=1 ;;
    --cuda) cuda=1 ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: unknown option '$argument' (see scripts/setup.sh --help)" >&2; exit 2 ;;
  esac
done
say() { printf 'setup: %s\n' "$*"; }
. scripts/fetch.sh

# Debian packages. python3-venv gives the tools that Debian 12 has too old (CMake 3.25; ONNX wants
# 3.26).
packages=(build-essential cmake ninja-build ccache git ca-certificates pkg-config
  python3 python3-venv clang-format-14 libprotobuf-dev protobuf-compiler libfmt-dev
  libcli11-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev libzip-dev zlib1g-dev libre2-dev
  libmimalloc-dev libgtest-dev libgmock-dev dataset-fashion-mnist)
[ "$fuzz" = 0 ] || packages+=(clang-14 libclang-rt-14-dev libomp-14-dev)

install_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' ||
      missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "Debian packages: all there"
    return
  fi
  if [ "$system" = 0 ]; then
    say "Debian packages missing: ${missing[*]} (install them, or leave out --no-system)" >&2
    exit 1
  fi
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  say "Debian packages: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  # Through env: sudo does not hand on the variables of its caller.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

make_venv() {
  local wanted="cmake==3.31.6 numpy==2.2.6"
  [ "$judges" = 0 ] || wanted="$wanted onnx==1.22.0 onnxruntime==1.31.0"
  if [ "$(cat "$cache/venv/.halfnote" 2>/dev/null)" = "$wanted" ]; then
    say "Python tools: all there"
    return
  fi
  say "Python tools: installing $wanted into $cache/venv"
  [ -x "$cache/venv/bin/pip" ] || /usr/bin/python3 -m venv "$cache/venv"
  # shellcheck disable=SC2086
  "$cache/venv/bin/pip" install -q --disable-pip-version-check $wanted
  echo "$wanted" >"$cache/venv/.halfnote"
}

build_onnx() {
  local version=1.23.2 prefix=$cache/onnx-1.23.2
  if [ -f "$prefix/.complete" ]; then
    say "ONNX $version: there"
    return
  fi
  say "ONNX $version: downloading the source distribution"
  fetch "onnx==$version" 008cb0467b2bbee41448acc7da8b6f4e704624cb0d327a2d5adafc7ce19bc5b8 \
    "$cache/download/onnx" --no-binary onnx
  rm -rf "$cache/source/onnx" && mkdir -p "$cache/source/onnx"
  tar -xzf "$cache"/download/onnx/onnx-*.tar.gz --strip-components=1 -C "$cache/source/onnx"
  say "ONNX $version: building (about 2 minutes on 2 cores)"
  "$cache/venv/bin/cmake" -S "$cache/source/onnx" -B "$cache/source/onnx/build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DONNX_BUILD_PYTHON=OFF \
    -DONNX_BUILD_TESTS=OFF -DONNX_ML=ON \
    -DONNX_USE_PROTOBUF_SHARED_LIBS=ON -DPython3_EXECUTABLE=/usr/bin/python3 \
    >"$cache/onnx-build.log" 2>&1 &&
    "$cache/venv/bin/cmake" --build "$cache/source/onnx/build" >>"$cache/onnx-build.log" 2>&1 &&
    "$cache/venv/bin/cmake" --install "$cache/source/onnx/build" >>"$cache/onnx-build.log" 2>&1 || {
    tail -n 20 "$cache/onnx-build.log" >&2
    say "ONNX $version: the build failed, the log is $cache/onnx-build.log" >&2
    exit 1
  }
  rm -rf "$cache/source/onnx" "$cache/download/onnx"
  touch "$prefix/.complete"
}

install_onednn() {
  local version=2023.2.0 prefix=$cache/onednn-3.2
  if [ -f "$prefix/.complete" ]; then
    say "oneDNN 3.2: there"
    return
  fi
  say "oneDNN 3.2: downloading its wheels"
  fetch "onednn-cpu-gomp==$version" \
    2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb \
    "$cache/download/onednn" --only-binary=:all:
  fetch "onednn-devel-cpu-gomp==$version" \
    9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284 \
    "$cache/download/onednn-devel" --only-binary=:all:
  rm -rf "$prefix" && mkdir -p "$prefix"
  local wheel
  for wheel in "$cache"/download/onednn*/*.whl; do
    /usr/bin/python3 - "$wheel" "$prefix" <<'PY'
# A wheel keeps its files for the installation prefix under NAME.data/data/.
import pathlib, sys, zipfile
wheel, prefix = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in wheel.namelist():
    head, mark, rest = name.partition(".data/data/")
    if mark and rest and not rest.endswith("/"):
        (prefix / rest).parent.mkdir(parents=True, exist_ok=True)
        (prefix / rest).write_bytes(wheel.read(name))
PY
  done
  # Wheels hold no symbolic links: the library stands there three times.
  ln -sf libdnnl.so.3.2 "$prefix/lib/libdnnl.so.3"
  ln -sf libdnnl.so.3 "$prefix/lib/libdnnl.so"
  rm -rf "$cache"/download/onednn*
  touch "$prefix/.complete"
}

# ONNX's own tests come in its source distribution: a folder a case, with a small model, inputs and
# outputs. Only they are unpacked (about 65 MB).
unpack_onnx_tests() {
  local version=1.22.0 folder=$cache/onnx-tests-1.22.0
  if [ -f "$folder/.complete" ]; then
    say "ONNX's tests $version: there"
    return
  fi
  say "ONNX's tests $version: downloading the source distribution"
  fetch "onnx==$version" ef40c0aaf0b643857ea9306fc7eddce17eaf9fb0407e4801f1fc5758443a38e0 \
    "$cache/download/onnx-tests" --no-binary onnx
  rm -rf "$folder" && mkdir -p "$folder"
  tar -xzf "$cache"/download/onnx-tests/onnx-*.tar.gz -C "$folder" --strip-components=5 \
    "onnx-$version/onnx/backend/test/data"
  rm -rf "$cache/download/onnx-tests"
  touch "$folder/.complete"
}

mkdir -p "$cache"
install_packages
make_venv
# What is only downloaded comes while ONNX is built.
download() {
  install_onednn
  [ "$judges" = 0 ] || unpack_onnx_tests
  [ "$cuda" = 0 ] || scripts/setup_cuda.sh
}
download &
downloads=$!
trap 'kill "$downloads" 2>/dev/null || :' EXIT
build_onnx
wait "$downloads" || { say "a download failed, see above" >&2; exit 1; }
trap - EXIT
say "done: everything is in $cache"
