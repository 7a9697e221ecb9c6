#!/usr/bin/env bash
# Runs ONNX's own tests and rewrites docs/conformance.md.
#
# Usage: scripts/update_conformance.sh [FILE]   (default: docs/conformance.md)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
build_preset release halfnote-conformance
OMP_WAIT_POLICY=passive build/release/bin/halfnote-conformance "$cache/onnx-tests-1.22.0" \
  --floor 1750 --write-docs "${1:-docs/conformance.md}"
