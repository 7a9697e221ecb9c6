#!/usr/bin/env bash
# scripts/gpu_check.sh on a machine without a GPU: tests/gpu_check/run.sh BUILD-FOLDER
#
# What it packs, how it is called wrongly, where it looks for CUDA's libraries, that without a
# driver every part is "not run", and the JSON of parts that do run, on the emulated device.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tests/gpu_check/run.sh BUILD-FOLDER}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
failed=0
# One driver that answers for an old CUDA stands before any other: this machine's is not needed.
export LD_LIBRARY_PATH=$PWD/$build/tests/old_driver

fail() {
  echo "FAIL: $*"
  failed=1
}

# expect CODE TEXT COMMAND…: the exit code, and that the output says TEXT.
expect() {
  local code=$1 text=$2 got=0
  shift 2
  "$@" >"$place/said" 2>&1 || got=$?
  [ "$got" = "$code" ] || fail "$*: exit code $got, expected $code: $(tail -n 3 "$place/said")"
  grep -qF -- "$text" "$place/said" || fail "$*: does not say '$text': $(cat "$place/said")"
}

# field FILE EXPRESSION: of the JSON, as Python sees it.
field() {
  python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"
}

packed=$place/packed
check=$packed/gpu_check.sh
expect 2 "unknown command" scripts/gpu_check.sh
expect 2 "run it in the folder that pack made" scripts/gpu_check.sh run
expect 2 "build with -DHALFNOTE_CUDA=ON" scripts/gpu_check.sh pack --bin "$place" --out "$packed"
mkdir "$place/bin"
for program in "$build"/bin/halfnote*; do ln -s /bin/true "$place/bin/$(basename "$program")"; done
expect 2 "has no CUDA in it" scripts/gpu_check.sh pack --bin "$place/bin" --out "$packed"
expect 2 "is no folder that pack made" scripts/gpu_check.sh pack --bin "$build/bin" --out "$place"
# Sources may be newer than these programs, which nothing measures.
expect 0 "of commit " scripts/gpu_check.sh pack --stale --bin "$build/bin" --out "$packed"
cat "$place/said"
! grep -q '^CMAKE_CUDA_FLAGS:.*-O1' "$build/CMakeCache.txt" ||
  grep -qE -- '^[0-9a-f]{40}(-stale)?(-dirty)?-check$' "$packed/COMMIT" ||
  fail "less optimised kernels: $(cat "$packed/COMMIT")"
[ "$(du -sm --apparent-size "$packed" | cut -f1)" -lt 60 ] || fail "60 MB or more"
tar -tJf "$packed/programs.tar.xz" | grep -E 'lib(cu|nv|c\.so)' && fail "what must not be packed"
expect 2 "unknown part 'opps'" "$check" run opps
expect 2 "no GPU is named 'cpu'" "$check" run --device cpu
expect 2 "--out wants a value" "$check" run --out
expect 2 "--seconds wants a number, got 'soon'" "$check" run --seconds soon
expect 2 "no fixtures are named 'all'" scripts/gpu_check.sh pack --bin "$build/bin" --fixtures all
expect 0 "determinism" "$check" list

# What is packed is of its sources, or says that it is not; large archives come in pieces.
small=$place/small
mkdir -p "$place/build/bin"
for program in "$build"/bin/halfnote*; do
  cp /bin/true "$place/build/bin/$(basename "$program")"
done
cp "$(python3 -c 'import sys; print(sys.executable)')" "$place/build/bin/halfnote" # more than 1 MB
echo libcuda.so.1 >>"$place/build/bin/halfnote"
pack_small() {
  scripts/gpu_check.sh pack --bin "$place/build/bin" --fixtures kernels --out "$small" "$@"
}
hash=$(git -c safe.directory='*' rev-parse HEAD)
expect 0 "of commit $hash" pack_small
grep -q stale "$small/COMMIT" && fail "not stale: $(cat "$small/COMMIT")"
tar -tJf "$small/programs.tar.xz" | sort >"$place/whole"
touch -d 2001-01-01 "$place/build/bin/halfnote-steps"
expect 2 "bin/halfnote-steps is older than " pack_small
expect 2 "--pieces wants a number, got 'two'" pack_small --pieces two
echo 'CMAKE_CUDA_FLAGS:STRING=-Xptxas -O1' >"$place/build/CMakeCache.txt"
expect 0 "their times say nothing" pack_small --stale --pieces 1
grep -qE -- "^$hash-stale(-dirty)?-check$" "$small/COMMIT" || fail "stale: $(cat "$small/COMMIT")"
[ ! -e "$small/programs.tar.xz" ] && [ -f "$small/programs.tar.xz.01" ] &&
  [ "$(cat "$small/PIECES")" = "$(find "$small" -name 'programs.tar.xz.*' | wc -l)" ] &&
  [ -z "$(find "$small" -size +1024k)" ] || fail "pieces: $(ls -l "$small")"
expect 2 "unknown part 'opps'" "$small/gpu_check.sh" run opps
mkdir "$place/joined"
unpack_small() {
  here=$small work=$place/joined python=python3 bash -c '. scripts/gpu_check/pack.sh
    wrong() { echo "$*" >&2; exit 2; }
    unpack_programs'
}
unpack_small || fail "pieces are not joined"
(cd "$place/joined" && find bin lib tests -type d -printf '%p/\n' -o -printf '%p\n') | sort |
  cmp -s - "$place/whole" || fail "what the pieces hold"
mv "$small/programs.tar.xz.01" "$place/"
expect 2 "programs.tar.xz.01 is not there" unpack_small
rm -r "$place/joined" "$small"
expect 0 "of commit $hash" pack_small --stale --fixtures none
tar -tJf "$small/programs.tar.xz" | grep 'fixtures/.' && fail "fixtures are packed"
expect 2 "no fixtures in " "$small/gpu_check.sh" run --out "$place/none" memory
expect 2 "there is no such folder" "$small/gpu_check.sh" run --sources "$place/nowhere" memory
expect 10 "memory" "$small/gpu_check.sh" run --sources . --out "$place/none" memory
rm -r "$small" "$place/none"

# Without a usable driver nothing is checked, and nothing passes.
expect 10 "the NVIDIA driver is too old: expected one for CUDA 13, got one for CUDA 12.4" \
  "$check" run --out "$place/old" device bench-gpt2
for part in device bench-gpt2; do
  [ "$(field "$place/old/$part.json" 'd["part"], d["status"], d["rows"]')" = \
    "('$part', 'not run', [])" ] || fail "$part.json: $(cat "$place/old/$part.json")"
done
[ "$(field "$place/old/device.json" '"CUDA 12.4" in d["reason"] and d["date"][:2]')" = 20 ] ||
  fail "no reason, or no date"

# CUDA's libraries: named ones before those of a toolkit, those of a Python environment.
mkdir -p "$place/named" "$place/site/nvidia/cu13/lib" "$place/smi"
touch "$place/named/libcublasLt.so.13" "$place/named/libcudnn.so.9" \
  "$place/named/libnvrtc.so.13" \
  "$place/site/nvidia/cu13/lib/libcublasLt.so.13"
printf '#!/bin/sh\necho "NVIDIA \\"H\\" 200, 580.95.05"\n' >"$place/smi/nvidia-smi"
chmod +x "$place/smi/nvidia-smi"
HALFNOTE_CUDA_LIBRARIES=/nowhere:$place/named PATH=$place/smi:$PATH expect 10 \
  "CUDA's libraries: $place/named" "$check" run --out "$place/named.out" memory
[ "$(field "$place/named.out/memory.json" 'd["gpu"], d["driver"], d["cuda_libraries"]')" = \
  "('NVIDIA \"H\" 200', '580.95.05', '$place/named')" ] ||
  fail "memory.json: $(cat "$place/named.out/memory.json")"
found=$(python=python3 PYTHONPATH=$place/site bash -c \
  '. scripts/gpu_check/libraries.sh; library_folders' | grep -xF "$place/site/nvidia/cu13/lib")
[ -n "$found" ] || fail "the libraries of a Python environment are not looked for"

# A case that lacks a kernel is "not run", one that misses its bars a failure.
mkdir "$place/cases"
cat >"$place/cases/halfnote-cases" <<'END'
#!/bin/sh
case "$5" in
  */a) echo 'a  FAIL: node "x" (LRN): no kernel on this device' ;;
  */b) echo 'b  FAIL: 2 nodes have no kernel on this device:'
    echo '  node "y" (Det): no kernel on this device' ;;
  */c) echo 'c  loss 1.0e+00  FAIL' ;;
  */d) echo 'd  loss 1.0e+00'; echo '1 passed, 0 failed'; kill -11 $$ ;;
  *) echo '1 passed, 0 failed'; exit 0 ;;
esac
exit 1
END
chmod +x "$place/cases/halfnote-cases"
for name in a b c d e f; do mkdir -p "$place/fixtures/models/$name"; done
# with_parts COMMAND…: in a shell that has the parts, of programs in $place/cases.
with_parts() {
  bin=$place/cases fixtures=$place/fixtures device=cuda work=$place log=/dev/null jobs=2 \
    own_libraries=$place bash -c '. scripts/gpu_check/report.sh; . scripts/gpu_check/parts.sh
    deadline=$((SECONDS + 60)); "$@"' with_parts "$@"
}
seen=$(with_parts run_cases models fp32 | awk '{print $3, $4}' | tr '\n' ',')
[ "$seen" = "a not,b not,c fail,d fail,fail 2," ] || fail "cases: $seen"

# Some models once more, in the forms that the environment asks for.
cat >"$place/cases/halfnote-cases" <<'END'
#!/bin/sh
echo "$2 $(basename "$5")${HALFNOTE_RECURRENT:+ own}${HALFNOTE_ATTENTION:+ attention}\
${HALFNOTE_EPILOGUES:+ epilogues}" >>"${0%/*}/asked"
END
mkdir "$place"/fixtures/models/{bert,lstm_lm,unet}
with_parts part_cases >/dev/null
seen=$(grep -c ' [^ ]* ' "$place/cases/asked")
for asked in "fp32 unet" "bf16 bert" "fp32 lstm_lm own" \
  {fp32,bf16,fp16}" bert "{attention,epilogues}; do
  grep -qxF "$asked" "$place/cases/asked" || fail "forms of cases: nobody asked for $asked"
done
[ "$seen" = 7 ] || fail "forms of cases: $seen"

# Runs that differ are told by their model.
cat >"$place/cases/halfnote-step" <<'END'
#!/bin/sh
mkdir "$4"
case "$2" in */gcn/*) echo $$ ;; *) echo "$2" ;; esac >"$4/step-1.bin"
END
printf '#!/bin/sh\nexit 0\n' >"$place/cases/halfnote"
chmod +x "$place/cases/halfnote" "$place/cases/halfnote-step"
with_parts part_determinism >"$place/said" 2>&1
[ "$(grep -c ' pass  *10 runs' "$place/said")" = 22 ] || fail "determinism: $(cat "$place/said")"
grep -q 'gcn bf16 *fail *10 different' "$place/said" || fail "gcn: $(cat "$place/said")"

# Suites run in processes of their own: one that dies hides no other, a parameter's test has a row.
cat >"$place/cases/halfnote_cuda_test" <<'END'
#!/bin/sh
case "$*" in
  *list_tests*)
    printf 'CudaA.\n  One\n  Two\nCudaB.\n  One\nTypes/CudaC.\n  All/0  # GetParam() = 1\n' ;;
  *=CudaA.One:CudaA.Two) echo '[       OK ] CudaA.One (1 ms)'; kill -11 $$ ;;
  *=CudaB.One) echo '[       OK ] CudaB.One (1 ms)' ;;
  *=Types/CudaC.All/0) echo 'why'
    echo '[  FAILED  ] Types/CudaC.All/0, where GetParam() = 1 (2 ms)'; exit 1 ;;
esac
END
chmod +x "$place/cases/halfnote_cuda_test"
seen=$(with_parts run_tests kernels halfnote_cuda_test 'Cuda*' | awk '{print $1, $2}' | tr '\n' ',')
[ "$seen" = "CudaA fail,Types/CudaC.All/0 fail,kernels fail," ] || fail "tests: $seen"

# A suite that vanishes, one that ends early and says nothing, and a list that is none are failures.
cat >"$place/cases/halfnote_cuda_test" <<'END'
#!/bin/sh
case "$*" in
  *list_tests*) printf 'CudaA.\n  One\n  Two\nCudaB.\n  One\n' ;;
  *=CudaA.One:CudaA.Two) echo '[       OK ] CudaA.One (1 ms)' ;;
  *=CudaB.One) echo '[       OK ] CudaB.One (1 ms)'; kill -9 "$(ps -o ppid= -p "$PPID")" ;;
esac
END
seen=$(with_parts run_tests kernels halfnote_cuda_test 'Cuda*' | awk '{print $1, $2}' | tr '\n' ',')
[ "$seen" = "CudaA fail,CudaB fail,kernels fail," ] || fail "vanished: $seen"
printf '#!/bin/sh\nprintf "CudaA.\\n  One\\n"\nkill -11 $$\n' >"$place/cases/halfnote_cuda_test"
seen=$(with_parts run_tests kernels halfnote_cuda_test 'Cuda*' | awk '{print $1, $2}' | tr '\n' ',')
[ "$seen" = "kernels fail," ] || fail "list: $seen"

# What the time is too short for is unfinished, and hides no failure.
cat >"$place/cases/halfnote_cuda_test" <<'END'
#!/bin/sh
case "$*" in
  *list_tests*) printf 'CudaA.\n  One\nCudaB.\n  One\n' ;;
  *=CudaA.One) echo '[       OK ] CudaA.One (1 ms)' ;;
  *=CudaB.One) sleep 60 ;;
esac
END
late_tests() { deadline=$((SECONDS + 2)); run_tests kernels halfnote_cuda_test 'Cuda*'; }
export -f late_tests
seen=$(with_parts late_tests | awk '{print $1, $2}' | tr '\n' ',')
[ "$seen" = "CudaB unfinished,kernels unfinished," ] || fail "out of time: $seen"
sed -i 's/^  \*=CudaA.One).*/  *=CudaA.One) exit 3 ;;/' "$place/cases/halfnote_cuda_test"
seen=$(with_parts late_tests | awk '{print $1, $2}' | tr '\n' ',')
[ "$seen" = "CudaA fail,CudaB unfinished,kernels fail," ] || fail "out of time: $seen"

# With --more what came to its end stays, and the rest runs: first what has never begun.
cat >"$place/cases/halfnote_cuda_test" <<'END'
#!/bin/sh
case "$*" in
  *list_tests*) printf 'CudaA.\n  One\nCudaB.\n  One\nCudaC.\n  One\n' ;;
  *filter=*) name=${*##*=}; echo "$name" >>"${0%/*}/began"
    [ "$name" != CudaB.One ] || [ -e "${0%/*}/awake" ] || sleep 60
    [ "$name" != CudaA.One ] || exit 3
    echo "[       OK ] $name (1 ms)" ;;
esac
END
go_on() { with_parts env more=yes jobs=1 bash -c '. scripts/gpu_check/report.sh
  . scripts/gpu_check/parts.sh; late_tests' | awk '{print $1, $2}' | tr '\n' ','; }
seen=$(go_on)
[ "$seen" = "CudaA fail,CudaB unfinished,CudaC unfinished,kernels fail," ] || fail "--more: $seen"
touch "$place/cases/awake"
seen=$(go_on)
[ "$seen" = "CudaA fail,kernels fail," ] || fail "--more, again: $seen"
seen=$(tr '\n' ' ' <"$place/cases/began")
[ "$seen" = "CudaA.One CudaB.One CudaC.One CudaB.One " ] || fail "--more ran $seen"

tests/gpu_check/suites.sh "$build" || failed=1

# A driver that hangs is told as such.
printf '#!/bin/sh\nsleep 60\n' >"$place/cases/halfnote-step"
mkdir -p "$place/fixtures/models/mlp"
echo ' "loss_output": "loss",' >"$place/fixtures/models/mlp/case.json"
said=$(probe_seconds=1 with_parts bash -c '. scripts/gpu_check/libraries.sh
  . scripts/gpu_check/parts.sh; probe && echo passed')
[ "$said" = "the first step on cuda did not end in 1 s" ] || fail "probe: $said"
rm -r "$place/fixtures/models/mlp"

# A machine on which the sanitizer does not work says nothing about our kernels.
echo '========= Error: Device not supported. Please refer to the documentation' >"$place/tool.log"
seen=$(with_parts sanitizer_row memcheck 1 "$place/tool.log" | awk '{print $2, $3}')
[ "$seen" = "not run" ] || fail "sanitizer: $seen"

# The parts themselves, as far as the emulation goes.
expect 0 "pass" "$check" run --device cuda-emulated --out "$place/emulated" device memory
for part in device memory; do
  [ "$(field "$place/emulated/$part.json" \
    'd["status"], d["device"], len(d["rows"]), d["rows"][0]["status"]')" = \
    "('pass', 'cuda-emulated', 1, 'pass')" ] ||
    fail "$part.json: $(cat "$place/emulated/$part.json")"
done
[ "$(tar -tzf "$place/emulated.tar.gz" | grep -c json)" = 2 ] || fail "results in one file"
expect 10 "lacks torch" "$check" run --device cuda-emulated --python false \
  --out "$place/none" bench-bert
[ "$(field "$place/none/bench-bert.json" 'd["status"]')" = "not run" ] || fail "bench without torch"

# With and without the measurements of our own side.
printf '#!/bin/sh\n[ "$1" = -c ] || echo "$@"\n' >"$place/torch"
chmod +x "$place/torch"
expect 10 "tuned-cifar_cnn" "$check" run --device cuda-emulated --python "$place/torch" \
  --out "$place/tuned" tuned-cifar_cnn bench-cifar_cnn
seen=$(sed 's/.* --against/--against/' "$place"/tuned/{tuned,bench}-cifar_cnn.log | tr '\n' ' ')
[ "$seen" = "--against eager --precisions bf16 --keep --tune --against eager --precisions fp16 \
--keep --tune --against eager,own-tf32,own-fp32 --precisions bf16,fp16 --keep " ] ||
  fail "tuned: $seen"

# What was seen is not done again; what the time was too short for is no pass, and no failure.
expect 10 "no time is left of --total" "$check" run --device cuda-emulated --out "$place/emulated" \
  --more --total 1 memory determinism sanitizer
[ "$(field "$place/emulated/memory.json" 'd["status"]')" = pass ] ||
  fail "--more: $(cat "$place/said")"
expect 2 "--more wants --out" "$check" run --more device

# parts_of HASH COMMAND: in a shell that runs parts on a GPU, of programs of this commit.
parts_of() {
  mkdir -p "$place/of"
  echo "$1" >"$place/of/COMMIT"
  here=$place/of bash -c '. scripts/gpu_check/report.sh; . scripts/gpu_check/parts.sh
    . scripts/gpu_check/libraries.sh
    device=cuda gpu_name=a driver_version=b cuda_folders=c cublas_version=d library_versions=e
    nothing="" part_seconds=60 last_second=60 more=yes bin=bin work=work own_libraries=lib python=$3
    '"$2" parts_of "$place/killed" "$packed" "$place/torch" >/dev/null 2>&1
}

# A killed part leaves its rows, and JSON that says so.
mkdir "$place/killed"
parts_of one 'part_memory() { row one pass seen; kill -9 $$; }; run_part memory "$1"'
[ "$(field "$place/killed/memory.json" 'd["status"]') $(cat "$place/killed/memory.rows")" = \
  'unfinished {"name": "one", "status": "pass", "detail": "seen"}' ] ||
  fail "killed: $(cat "$place/killed"/*)"
parts_of one 'is_done "$1/memory.json"' && fail "a killed part is done"

# Done is what has nothing left to run, whatever failed, of these programs.
for late in unfinished fail; do
  parts_of one "part_memory() { row one fail seen; row two $late seen; }; run_part memory \"\$1\""
  [ "$(field "$place/killed/memory.json" 'd["status"], d["complete"]')" = \
    "('fail', $([ "$late" = fail ] && echo True || echo False))" ] ||
    fail "complete: $(cat "$place/killed/memory.json")"
  parts_of one 'is_done "$1/memory.json"' && done=fail || done=unfinished
  [ "$done" = "$late" ] || fail "done, with a row that is $late: $done"
done
parts_of two 'is_done "$1/memory.json"' && fail "a part of other programs is done"

# Figures go on from those of the same programs, are none of kernels that are less optimised, and
# stand beside the clocks.
printf '#!/bin/sh\ncase "$1" in *event*) exit 2 ;; esac\necho "1980 MHz, 0x1"\n' \
  >"$place/smi/nvidia-smi"
seen=""
for commit in one one two one-check; do
  echo '{"name": "bert bf16 eager", "status": "pass"}' >"$place/killed/bench-bert.jsonl"
  PATH=$place/smi:$PATH parts_of "$commit" 'run_part bench-bert "$1"'
  seen+=$(field "$place/killed/bench-bert.json" \
    'd["status"], len(d["rows"]), str(d.get("gpu_after"))[-13:], d["reason"][:15]')
done
[ "$seen" = "('not run', 0, '1980 MHz, 0x1', '')('pass', 1, '1980 MHz, 0x1', '1 of 1 passed')\
('not run', 0, '1980 MHz, 0x1', '')('not run', 1, 'None', 'one-check: its ')" ] ||
  fail "figures: $seen"

# The order of comparisons, what is no number, and a side that cannot be started again.
python3 tests/gpu_check/gpu_test.py || fail "bench/pytorch/gpu.py"

[ "$failed" = 0 ] && echo "gpu_check: ok"
exit "$failed"
