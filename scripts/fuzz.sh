#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz (clang, libFuzzer, address and undefined-behaviour
# sanitizers), replays their corpora and fuzzes them one after the other.
#
# Usage: scripts/fuzz.sh [TARGET… | --light] [--runs N | --seconds N | --up-to N | --replay]
#                        [--no-build]
#        scripts/fuzz.sh --list
#   TARGET…      only these (default: all)
#   --runs N     N executions a target
#   --seconds N  N seconds a target (default: 60)
#   --up-to N    what tests/fuzz/LEDGER.tsv lacks of N executions of a target; a line is added to it
#                after every 250,000, so that nothing is lost where this is stopped
#   --light      those that stand on base alone: readers of settings, data and checkpoints
#   --replay     only the corpora of tests/fuzz/corpus
#   --no-build   the programs are built already
#   --list       print the targets
#
# An input that took 2 seconds or more is run once more, alone: the clock also counts what other
# programs took of the processor.
#
# New inputs that reach new code go to build/fuzz/corpus/TARGET and are used again; inputs that
# fail go to build/fuzz/finds/TARGET-*. Ends with 0 when nothing was found, 1 when something was,
# 2 when it was called wrongly.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

seconds=2       # of processor time an input may take
waiting=30      # seconds of the clock: on a busy machine a target may have to wait
megabytes=2048  # a target may take
largest=512     # megabytes, of one allocation
longest=4096    # bytes of a new input, for most targets: long ones are slow and reach little more
chunk=250000    # executions that stand in the ledger on a line, with --up-to

mapfile -t all < <(cd tests/fuzz && ls -- *.cc | sed 's/\.cc$//')
light=(policy deepspeed safetensors manifest idx cifar npy npz)  # built in a minute
wanted=()
length=(-max_total_time=60)
ledger=tests/fuzz/LEDGER.tsv
up_to=0
fuzzes=1
build=1
while [ $# -gt 0 ]; do
  case "$1" in
    --runs | --seconds | --up-to)
      if ! [[ "${2:-}" =~ ^[1-9][0-9]*$ ]]; then
        echo "fuzz: $1 needs a number (see scripts/fuzz.sh --help)" >&2
        exit 2
      fi
      case "$1" in
        --runs) length=("-runs=$2") ;;
        --seconds) length=("-max_total_time=$2") ;;
        --up-to) up_to=$2 ;;
      esac
      shift
      ;;
    --replay) fuzzes=0 ;;
    --light) wanted+=("${light[@]}") ;;
    --no-build) build=0 ;;
    --list) printf '%s\n' "${all[@]}"; exit 0 ;;
    -h | --help) sed -n '2,23s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *)
      if ! printf '%s\n' "${all[@]}" | grep -qxF -- "$1"; then
        echo "fuzz: unknown target or option '$1' (see scripts/fuzz.sh --help, --list)" >&2
        exit 2
      fi
      wanted+=("$1")
      ;;
  esac
  shift
done
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")

if [ "$build" = 1 ]; then
  if ! command -v clang++-14 >/dev/null; then
    echo "fuzz: clang++-14 is not there: scripts/setup.sh --fuzz installs it" >&2
    exit 1
  fi
  # The kernels that `artifact` plans are those of the release build.
  if printf '%s\n' "${wanted[@]}" | grep -qxF artifact; then
    build_preset release halfnote_kernels halfnote_cuda || exit 1
  fi
  build_preset fuzz "${wanted[@]/#/fuzz_}" || exit 1
fi

# Containers that cross into libraries without a sanitizer look overfull to it. What is over the
# limit of one allocation fails as it would on a machine without that memory.
# Short stacks of allocations: whole ones take a tenth of the time, and a find is run again. What
# was freed is used again after 16 MB, not 256, and not given back: fresh pages take time.
asan=detect_container_overflow=0:malloc_context_size=1:quarantine_size_mb=16
asan+=:allocator_release_to_os_interval_ms=-1
export ASAN_OPTIONS=$asan:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
export OMP_WAIT_POLICY=passive
finds=build/fuzz/finds
mkdir -p "$finds"
status=0

# slow TARGET: whether an input that this run found slow takes too much processor time by itself.
slow() {
  local input took found=1
  local TIMEFORMAT='%U %S'
  for input in "$finds/$1"-slow-unit-*; do
    [ -f "$input" ] || continue
    took=$({ time build/fuzz/bin/"fuzz_$1" "$input" >/dev/null 2>&1; } 2>&1)
    if awk -v t="$took" -v s="$seconds" 'BEGIN {split(t, x, " "); exit !(x[1] + x[2] >= s)}'; then
      echo "fuzz: $1: takes ${took% *} s: $input" >&2
      found=0
    else
      rm -- "$input"
    fi
  done
  return "$found"
}

# execute TARGET ARGUMENT…: runs it within the limits; its log goes on. Without libFuzzer's entropic
# schedule, whose counts took half of the time of targets with much to reach: import_binary runs
# 2.6 times as many inputs a second, import_text 2.3, idx 1.5, and reaches as much with them.
execute() {
  local target=$1
  shift
  build/fuzz/bin/"fuzz_$target" "$@" -timeout="$waiting" -report_slow_units="$seconds" \
    -entropic=0 -rss_limit_mb="$megabytes" -malloc_limit_mb="$largest" -print_final_stats=1 \
    -artifact_prefix="$finds/$target-" >>"$log" 2>&1
}

# fuzz_target TARGET ARGUMENT…: replays its corpus, then fuzzes it so long; 1 if something was
# found. Sets `runs`.
fuzz_target() {
  local target=$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log result size speed
  shift
  case "$target" in
    artifact) size=20480 ;;  # the longest seed has 17,660
    import_*) size=8192 ;;
    *) size=$longest ;;
  esac
  mkdir -p "$corpus"
  : >"$log"
  execute "$target" -runs=0 "tests/fuzz/corpus/$target"
  result=$?
  if [ "$fuzzes" = 1 ] && [ "$result" = 0 ]; then
    execute "$target" "$@" -max_len="$size" "$corpus" "tests/fuzz/corpus/$target"
    result=$?
  fi
  if slow "$target"; then result=1; fi
  runs=$(awk '/^stat::number_of_executed_units/ {n = $2} END {print n}' "$log")
  speed=$(awk '/^stat::average_exec_per_sec/ {n = $2} END {print n}' "$log")
  if [ "$result" = 0 ]; then
    printf 'fuzz: %-15s %9s executions, %6s a second, nothing found\n' \
      "$target" "$runs" "$speed"
    return 0
  fi
  echo "fuzz: $target: found something; the whole log: $log" >&2
  grep -E -A 12 'ERROR: |runtime error|^fuzz: |terminate called|what\(\)' "$log" | head -n 40 >&2
  grep -F 'Test unit written' "$log" >&2
  return 1
}

# lacking TARGET: how many of the executions that are wanted the ledger does not have.
lacking() {
  awk -F '\t' -v t="$1" -v n="$up_to" '$1 == t {n -= $2} END {print (n > 0 ? n : 0)}' "$ledger"
}

for target in "${wanted[@]}"; do
  if [ "$up_to" = 0 ]; then
    fuzz_target "$target" "${length[@]}" || status=1
    continue
  fi
  while left=$(lacking "$target") && [ "$left" -gt 0 ]; do
    if ! fuzz_target "$target" -runs=$((left < chunk ? left : chunk)); then
      status=1
      break
    fi
    printf '%s\t%s\t%s\tnone\n' "$target" "$runs" "$(git rev-parse --short HEAD)" >>"$ledger"
  done
done
exit "$status"
