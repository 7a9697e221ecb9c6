#!/usr/bin/env bash
# What a first hour on a real GPU shows: packs the programs here, checks them there.
#
# Usage: scripts/gpu_check.sh pack [--bin FOLDER] [--out FOLDER] [--stale]
#        [--fixtures none|models,exporters,kernels,torch] [--most MB] [--pieces MB]
#        gpu_check/gpu_check.sh run [--device cuda:N] [--out FOLDER] [--python PYTHON]
#        [--seconds N] [--total N] [--more] [--jobs N] [--sources FOLDER] [PART…]
#        gpu_check/gpu_check.sh list
#
# pack   collects the programs of a build with CUDA (default: build/cuda/bin), the shared libraries
#        that they need but CUDA's own, and the fixtures (or some of them) into one folder under 60
#        MB, or --most (default: build/gpu_check). Copy it to the machine with the GPU. With
#        --fixtures none it is half as large: `run --sources CHECKOUT` there takes those of that.
#        --pieces MB cuts programs.tar.xz into programs.tar.xz.00, .01 … of so many MB at most, for
#        machines to which a call brings little: the first call carries the first piece, the second
#        one all else; `run` there joins them.
#        COMMIT says what was packed: HASH, -dirty behind it where tracked files are changed, -check
#        where the kernels are compiled with -O1 (preset cuda-check): bench, tuned and compiled are
#        then "not run". Programs older than their sources are packed with --stale alone, as -stale.
# run    needs that folder, a driver for CUDA 13 and CUDA 13's libraries: of a toolkit, or of the
#        nvidia packages in a Python environment; HALFNOTE_CUDA_LIBRARIES names their folder where
#        they are found nowhere. Each part takes --seconds at most (default: 480); all run if none
#        is named, in the order of `list`: what tells most comes first. Tests and cases run in
#        processes of their own, --jobs at a time (default: a processor each, 12 at most). Writes
#        PART.json and PART.log (default: the folder results-DATE), and all of them into
#        FOLDER.tar.gz, after each part anew; prints a table. Where a machine gives few files back,
#        keep --out outside of what it collects, and copy FOLDER.tar.gz there. A part that is killed
#        leaves what it has seen, as "unfinished". The parts bench, tuned and compiled want a Python
#        with torch and transformers (--python; default: python3).
#        --total N ends after N seconds; parts that no time is left for are "not run". With --more
#        the same command goes on where the last one ended: parts of the same COMMIT and device that
#        are "complete" in --out stay as they are; of others the tests, cases and comparisons run
#        that the time was too short for. What that needs lies in FOLDER.work.
#        --device cuda-emulated checks this script where there is no GPU, and nothing else.
# list   names the parts, in their order.
#
# The first half hour on a GPU, by commands of ten minutes: three times
#        gpu_check/gpu_check.sh run --out build/first --seconds 200 --total 570 --more
#
# Ends with 0 when all parts passed, 1 when one failed or was cut off by the time, 2 when it was
# called wrongly, 10 when a part was "not run" for want of a GPU, driver, library or time: that is
# never a "pass".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -d "$here/gpu_check" ] && helpers=$here/gpu_check || helpers=$here
. "$helpers/report.sh"
. "$helpers/libraries.sh"
. "$helpers/parts.sh"
. "$helpers/pack.sh"

wrong() {
  echo "gpu_check: $* (see gpu_check.sh --help)" >&2
  exit 2
}

# value NAME VALUE…: the word after an option.
value() {
  [ $# -ge 2 ] || wrong "$1 wants a value"
  echo "$2"
}

list_parts() { printf '%s\n' "${parts[@]}"; }
part_names() { list_parts | awk '{print $1}'; }

run_command() {
  local names=() out="" name
  device=cuda
  python=${PYTHON:-python3}
  part_seconds=480 total_seconds=0 more=no probe_seconds=60 sources=
  jobs=$(nproc)
  [ "$jobs" -le 12 ] || jobs=12
  while [ $# -gt 0 ]; do
    case "$1" in
      --device) device=$(value "$@") || exit 2; shift ;;
      --out) out=$(value "$@") || exit 2; shift ;;
      --python) python=$(value "$@") || exit 2; shift ;;
      --seconds) part_seconds=$(value "$@") || exit 2; shift ;;
      --total) total_seconds=$(value "$@") || exit 2; shift ;;
      --more) more=yes ;;
      --jobs) jobs=$(value "$@") || exit 2; shift ;;
      --sources) sources=$(value "$@") || exit 2; shift ;;
      -*) wrong "unknown option '$1'" ;;
      *)
        part_names | grep -qxF -- "$1" || wrong "unknown part '$1'"
        names+=("$1")
        ;;
    esac
    shift
  done
  [[ "$device" =~ ^cuda(:[0-9]+|-emulated)?$ ]] || wrong "no GPU is named '$device'"
  [[ "$part_seconds" =~ ^[1-9][0-9]*$ ]] || wrong "--seconds wants a number, got '$part_seconds'"
  [[ "$total_seconds" =~ ^[0-9]+$ ]] || wrong "--total wants a number, got '$total_seconds'"
  [ "$more" = no ] || [ -n "$out" ] || wrong "--more wants --out: the results to go on with"
  [[ "$jobs" =~ ^[1-9][0-9]*$ ]] || wrong "--jobs wants a number, got '$jobs'"
  are_programs_in "$here" || wrong "no programs here: run it in the folder that pack made"
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(part_names)
  [ -z "$sources" ] || sources=$(cd "$sources" 2>/dev/null && pwd) ||
    wrong "--sources: there is no such folder"
  out=${out:-$PWD/results-$(date -u +%Y%m%d-%H%M%S)}
  mkdir -p "$out" || exit 2
  out=$(cd "$out" && pwd)
  last_second=$((SECONDS + (total_seconds > 0 ? total_seconds : 1000000)))
  work=$out.work
  if [ "$more" = no ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
  fi
  # Of other programs, or another device, nothing is gone on with.
  [ "$(cat "$work/of" 2>/dev/null)" = "$device $(packed_commit)" ] || rm -rf "$work"
  mkdir -p "$work"
  echo "$device $(packed_commit)" >"$work/of"
  unpack_programs
  find_machine
  for name in "${names[@]}"; do
    if [ "$more" = yes ] && is_done "$out/$name.json"; then continue; fi
    run_part "$name" "$out"
    tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
  done
  print_table "$out" "${names[@]}"
}

case "${1:-}" in
  pack) shift; pack_command "$@" ;;
  run) shift; run_command "$@" ;;
  list) list_parts ;;
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;;
  *) wrong "unknown command '${1:-}'" ;;
esac
