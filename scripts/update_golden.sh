#!/usr/bin/env bash
# Rewrites the expectations of all golden files from what the passes do now; review the difference.
#   scripts/update_golden.sh [BUILD_FOLDER]      default: build/release
set -euo pipefail
cd "$(dirname "$0")/.."
build="${1:-build/release}"
cmake --build "$build" --target halfnote_passes_test
test="$(find "$build" -name halfnote_passes_test -type f -perm -u+x | head -n 1)"
HALFNOTE_UPDATE_GOLDEN=1 "$test" --gtest_filter='*Golden.*'
git --no-pager diff --stat -- tests/passes/golden
