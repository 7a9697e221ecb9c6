#!/usr/bin/env bash
# Installs a build into an empty folder, moves that, and checks the program and a project that uses
# the package.
#
# Usage: tests/install/run.sh BUILD_FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:?usage: tests/install/run.sh BUILD_FOLDER}" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/first" >"$work/install.log" ||
  { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/prefix"

# Nothing of the caller's environment may be needed.
env -i "$work/prefix/bin/halfnote" --version

cmake -S "$root/tests/install" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" --log-level=WARNING >/dev/null
cmake --build "$work/consumer" -- --quiet
env -i "$work/consumer/consumer" "$root/samples/fashion_mnist/model.onnxtxt"
env -i MODEL="$root/samples/fashion_mnist/model.onnxtxt" "$work/consumer/consumer_test" \
  --gtest_brief=1

# No path of this machine's build may be left in the package.
if grep -rlF -e "$build" -e "$root" "$work"/prefix/lib*/cmake "$work"/prefix/lib/*/cmake \
  2>/dev/null; then
  echo "install: the files above name folders of the build" >&2
  exit 1
fi
echo "install: the program and a project that uses the package work"
