#!/usr/bin/env bash
# Sets up, builds and runs all tests of halfnote; ends with a table of minutes per leg.
#
# Usage: scripts/test.sh [--quick] [--no-setup] [--list] [LEG…]
#   --quick      only the legs checks, build and unit
#   --no-setup   everything is installed already: leave out scripts/setup.sh
#   --list       print the legs, run nothing
#   LEG…         only these legs (and the build, if one of them needs its programs)
#
# Ends with 0 when all legs passed, 1 when one failed, 2 when it was called wrongly.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

bin=$PWD/build/release/bin
logs=$PWD/build/logs

# Name, whether it needs the release programs, what it does. In the order they run.
legs=(
  "checks   no  include direction, sizes, clang-format"
  "build    no  release build"
  "unit     yes unit tests"
  "cases    yes models of today's exporters in fp32, bf16, fp16 against PyTorch's numbers"
  "conformance yes ONNX's own tests; docs/conformance.md is up to date"
  "malformed yes broken and odd models: the documented error and exit code, in 2 s and 1 GiB"
  "random   yes random training graphs: f64, exactness, plan, 16 bit, cuda-emulated, within bounds"
  "faults   yes kill -9 while saving, full disks, spoiled data: a clear error, whole files, resume"
  "judges   yes function bodies and training steps of all fixtures in onnxruntime"
  "examples yes the commands of README and docs, --help, short runs of demo and CIFAR sample"
  "install  yes installation into an empty folder, and a project that uses it"
  "asan     no  sanitizers (address, undefined behaviour): unit tests, two models trained"
  "cuda     no  everything by nvcc for GPUs; what is said where there is no driver; gpu_check.sh"
  "fuzz     no  fuzz targets of settings, data and checkpoints: corpora, then 60 s of new inputs"
)

# With the compilers of the legs fuzz and cuda, where those are to run.
leg_setup() {
  local fuzz=() cuda=()
  if printf '%s\n' "${wanted[@]}" | grep -qx fuzz; then fuzz=(--fuzz); fi
  if printf '%s\n' "${wanted[@]}" | grep -qx cuda; then cuda=(--cuda); fi
  # Where CUDA cannot be had the leg cuda alone fails: it tries once more, and says why.
  scripts/setup.sh "${fuzz[@]}" "${cuda[@]}" || scripts/setup.sh "${fuzz[@]}"
}

# Files under version control and new ones that git does not ignore, without those just deleted.
list_cpp() {
  git -c safe.directory="$PWD" ls-files --cached --others --exclude-standard -- \
    '*.cc' '*.h' '*.inc' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

leg_checks() {
  local files status=0
  python3 scripts/check_includes.py || status=1
  python3 scripts/check_sizes.py || status=1
  mapfile -t files < <(list_cpp)
  if printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$jobs" clang-format-14 --dry-run -Werror; then
    echo "clang-format: ${#files[@]} files, ok"
  else
    status=1
  fi
  return "$status"
}

leg_build() { build_preset release; }

# The unit tests, the longest first.
tests=(kernels cuda ops session runtime passes base ir onnx cli)

# What NVRTC compiles runs nowhere here: the leg cuda has these tests.
not_here='NvrtcTest*'
# What the sanitizers leave to the leg unit: finite differences call the kernels of other tests
# thousands of times; peaks of memory and speeds are those of the sanitizer; and some tests repeat,
# with more lengths, steps, models or flags, what others do.
not_sanitized=$(printf '%s:' "$not_here" 'SamplingGradient.*' 'LoweringGradient.*' \
  'RecurrentGradient.*' '*CentralDifferences*' Attention.RowsBeforeHeadsHaveTheSameBits \
  EpilogueTraining.TrainsAsWithoutThem CudaLayerNorm.ManyLines CudaLayerNorm.F32IsNearTheSumsInF64 \
  'ChannelsLastLarge.*' Recompute.ALimitChangesNoBitOfAConvolutionalNet \
  Recompute.WhatOneLimitReachesIsEnoughForAllAbove '*ControlFlow*/LoopOfShapedNumbers' \
  StatefulBody.DropoutIsIdentical Reduce.FastSumsAreThoseOfTheReference \
  Run.WhatReadingTheModelTookIsPredicted Run.AProfileIsInNoPeak Profile.MeasuresThePeak \
  Run.ProfileIsATableAndTwoFiles Blas.ModelsAskForWhatIsLegalAndFast \
  RunFolder.OutputsNeverTakeThePlaceOfItsOwnFiles \
  RunFolder.TheModelMayGoIntoTheNewFolderUnderAnyName ExitCode.TwoForUsage \
  SettingNames.APolicyFileIsToldItsLineAndItsKey Pointwise.FunctionsAreWithinTwoUlps \
  Recompute.ALimitOutOfReachIsComeNear Gemm.ReferenceFollowsTheFormula LossBody.CountCorrect \
  Dnn.ModelsAskForTheirAttention 'RandomGraphs.*' 'LongWays.*' 'PointwiseSums.OfRows*' \
  'Rows/UpdateForms.*/reference' CudaAttention.TheLibrarysHiddenRowsArePassedBackThrough \
  CudaLoss.LabelsWithTheHighestScores MatMul.ReferenceIsTheSumOfProducts \
  OptimizerBody.AgreesWithTheKernel SettingNames.WholeNumbersOfFlagsAreReadWholeOrRefused)

# unit_part BUILD test NAME PART PARTS: a share of the tests of halfnote_NAME_test in one process: a
# process for each test would take twice the time.
# unit_part BUILD ctest NAME: a test of ctest's that is no GoogleTest.
# unit_part BUILD cases PRECISION: two models compiled and trained.
# The output goes to a log, and is shown where it fails; the seconds of processor time to
# unit-BUILD.seconds.
unit_part() {
  local build=$1 log=$logs/$1_$2_$3${4:+_$4}.log command status=0 TIMEFORMAT="%U ${*:2}"
  local filter=--gtest_filter=-$not_here
  shift
  [ "$build" != asan ] || filter=--gtest_filter=-$not_sanitized
  case "$1" in
    test)
      export GTEST_TOTAL_SHARDS=$4 GTEST_SHARD_INDEX=$3
      command=("build/$build/bin/halfnote_$2_test" "$filter")
      ;;
    ctest)
      command=(ctest --test-dir "build/$build" -R "^$2\$" --output-on-failure --no-tests=error)
      ;;
    cases)
      command=("build/$build/bin/halfnote-cases" --precision "$2"
        tests/fixtures/models/mlp tests/fixtures/models/cifar_cnn)
      ;;
  esac
  { time timeout 1200 "${command[@]}" >"$log" 2>&1 || status=$?; } 2>>"$logs/unit-$build.seconds"
  [ "$status" != 0 ] || return 0
  echo "$build: $*: exit code $status; the whole log: $log"
  grep -v -E '^\[ +(OK|RUN) +\]' "$log" | tail -n 200
  return 1
}

# unit_parts BUILD: those that the input names, a line each, as many at a time as there are
# processors.
unit_parts() {
  local status=0
  export -f unit_part
  export logs not_here not_sanitized OMP_WAIT_POLICY=passive
  rm -f "$logs/unit-$1.seconds"
  # Lists the tests: two of ctest that did so at a time would spoil the list.
  ctest --test-dir "build/$1" -N >/dev/null || return 1
  xargs -P "$jobs" -L 1 bash -c 'unit_part "$@"' _ "$1" || status=1
  sort -rn -o "$logs/unit-$1.seconds" "$logs/unit-$1.seconds"
  awk '{ all += $1 } END { print NR " parts, " all " s of processor time; the longest:" }' \
    "$logs/unit-$1.seconds"
  head -n 5 "$logs/unit-$1.seconds"
  return "$status"
}

# list_unit_parts ISA_TEST…: what takes longest begins first, so that no processor waits at the end.
list_unit_parts() {
  local test part
  printf 'ctest Isa.%s\n' "$@"
  for test in "${tests[@]}"; do
    for part in {0..7}; do echo "test $test $part 8"; done
  done
}

# The kernels of products once more the other way: with the CPU's bf16 dot products, and in f32.
# The device's, which know neither, are not compared again.
leg_unit() {
  local first
  tests/gpu_check/suites.sh build/release || return 1
  { list_unit_parts Avx2Attention BaselineAttention Avx2 Baseline; echo "ctest Random.Finds"; } |
    unit_parts release
  products_in dots >"$logs/products-dots.log" 2>&1 &
  first=$!
  products_in f32
  wait "$first" || { cat "$logs/products-dots.log"; return 1; }
}
products_in() {
  HALFNOTE_TEST_DEVICE=none HALFNOTE_BF16=$1 "$bin/halfnote_kernels_test" --gtest_brief=1 \
    --gtest_filter='*OneDnn*:*Tiled*:*Attention*:*Blocks*:*Product*:*Conv*:MatMul*:Gemm*:Cpu*'
}

leg_cases() {
  local precision status=0
  for precision in fp32 bf16 fp16; do
    echo "$precision:"
    "$bin/halfnote-cases" --precision "$precision" \
      tests/fixtures/models tests/fixtures/exporters || status=1
    # These models are too small for fuse-attention to pay.
    HALFNOTE_ATTENTION=always "$bin/halfnote-cases" --precision "$precision" \
      tests/fixtures/models/{bert,gpt2,llama,vit} \
      tests/fixtures/exporters/*{bert,gpt2,llama,sdpa,attention,t5,swin,bloom}* || status=1
  done
  emulated_cases || status=1
  return "$status"
}

# The same on the emulated GPU, but for the three models that take longest there; of the exporters'
# cases all in fp32, control flow and LSTMs in 16 bits.
emulated_cases() {
  export -f emulated_part
  export bin logs
  {
    printf 'fp32 %s\n' a-c d-l m-q r-z
    printf '%s models\n' fp32 bf16 fp16
    printf '%s control\n' bf16 fp16
  } | xargs -P "$jobs" -L 1 bash -c 'emulated_part "$@"' _
}

# emulated_part PRECISION GROUP: models, control, or exporters by the first letters of their names.
# In one thread, as many at a time as there are processors.
emulated_part() {
  local log=$logs/emulated-$1-$2.log models=tests/fixtures/models exporters=tests/fixtures/exporters
  local cases=("$bin/halfnote-cases" --precision "$1" --device cuda-emulated) status=0
  {
    echo "$1 on cuda-emulated, $2:"
    case "$2" in
      models)
        "${cases[@]}" \
          $models/{mlp,cifar_cnn,bert,dlrm,gcn,gpt2,gru_classifier,llama,lstm_lm,vit} &&
          HALFNOTE_ATTENTION=always "${cases[@]}" $models/{bert,gpt2,llama,vit} &&
          HALFNOTE_EPILOGUES=always "${cases[@]}" $models/{mlp,bert,dlrm,gpt2,vit}
        ;;
      control) "${cases[@]}" $exporters/{condition,determinant,lstm,scans,rnn}* ;;
      *) "${cases[@]}" $exporters/[$2]* ;;
    esac
  } >"$log" 2>&1 || status=1
  cat "$log"
  return "$status"
}

# No wrong result, no fewer passes than ever, and the page about them says what is true.
leg_conformance() {
  local page=$logs/conformance.md
  "$bin/halfnote-conformance" "$cache/onnx-tests-1.22.0" --floor 1750 --write-docs "$page" \
    >"$logs/conformance.log" || { tail -n 40 "$logs/conformance.log"; return 1; }
  tail -n 5 "$logs/conformance.log"
  diff -u docs/conformance.md "$page" || {
    echo "docs/conformance.md is out of date: scripts/update_conformance.sh"
    return 1
  }
}

leg_malformed() {
  local status=0
  "$python" tests/malformed/run.py "$bin" || status=1
  "$python" tests/malformed/run.py "$bin" --generated 2000 --keep build/malformed || status=1
  return "$status"
}

leg_random() {
  local log=$logs/random.log
  OMP_WAIT_POLICY=passive "$bin/halfnote-random" --count 400 >"$log" || { cat "$log"; return 1; }
  grep -E 'compared|planned|exact|problems' "$log"
  OMP_WAIT_POLICY=passive "$bin/halfnote-random" --hostile --count 150 >"$log" ||
    { cat "$log"; return 1; }
  grep -E 'hostile' "$log"
}

leg_faults() { "$python" tests/faults/run.py "$bin"; }

leg_judges() {
  export -f judge
  export python bin logs
  {
    echo "tests/judges/bodies.py $bin/halfnote_ops_test"
    printf "%s $bin\n" tests/judges/judge_*.py
  } | xargs -P "$jobs" -L 1 bash -c 'judge "$@"' _
}
# judge SCRIPT ARGUMENT
judge() {
  local log=$logs/$(basename "$1" .py).log status=0
  { echo "$1:"; "$python" "$@"; } >"$log" 2>&1 || status=1
  cat "$log"
  return "$status"
}

leg_examples() {
  "$python" scripts/check_examples.py "$bin"
  scripts/demo.sh --no-setup --quick
  # The loader's resize: Fashion-MNIST in the CNN of the CIFAR size.
  rm -rf build/cifar_quick
  samples/cifar_cnn/run.sh --precision bf16 --epochs 1 --samples 1280 --out build/cifar_quick
}

leg_install() { tests/install/run.sh build/release; }

# The tests and what they run; other legs run the judges' programs. The loops for AVX2 are those for
# AVX-512 with shorter vectors: the leg unit runs them.
leg_asan() {
  build_preset asan halfnote halfnote-cases $(printf 'halfnote_%s_test ' "${tests[@]}")
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  { list_unit_parts Baseline; printf 'cases %s\n' fp32 bf16 fp16; } | unit_parts asan
}

# Compiles and links with nvcc, and runs what needs no GPU. Only the programs of gpu_check.sh and
# the tests of the command line are built: the rest has no CUDA in it. No GPU runs these kernels, so
# that they are optimised less than those of the preset cuda: it takes nvcc two thirds of the time.
leg_cuda() {
  local build=build/cuda-check
  scripts/setup_cuda.sh
  build_preset cuda-check halfnote halfnote-cases halfnote-step halfnote-steps halfnote_cuda_test \
    halfnote_kernels_test halfnote_cli_test halfnote_paper_test halfnote-collect-chains
  OMP_WAIT_POLICY=passive "$build/bin/halfnote_cli_test" --gtest_brief=1 \
    --gtest_filter='CudaDriver*'
  # Of the toolkit that is used, if it is not where all look: then nothing is left out.
  local libraries=$PWD/.cache/cuda/lib first status=0
  [ ! -d "$libraries" ] || export HALFNOTE_CUDA_LIBRARIES=$libraries
  # One thread each.
  cuda_libraries "$build" >"$logs/cuda-libraries.log" 2>&1 &
  first=$!
  "$build/bin/halfnote_paper_test" --gtest_brief=1 || status=1
  tests/gpu_check/run.sh "$build" || status=1
  wait "$first" || status=1
  cat "$logs/cuda-libraries.log"
  return "$status"
}

# cuda_libraries BUILD: what NVRTC and the libraries say to what they are asked.
cuda_libraries() {
  local bin=$1/bin
  OMP_WAIT_POLICY=passive "$bin/halfnote_cuda_test" \
    --gtest_filter='Library*:TestedDevice*:Cudnn*:Dnn*:NvrtcTest*' | tee "$logs/cuda.log" |
    grep -v '\[ RUN \|\[       OK '
  if [ "${PIPESTATUS[0]}" != 0 ] || grep 'SKIPPED' "$logs/cuda.log"; then return 1; fi
  # Every generated kernel of the models.
  OMP_WAIT_POLICY=passive "$bin/halfnote-collect-chains" tests/fixtures/models \
    --architectures 80,90,100,120 || return 1
  # Those of the exporters' cases in one precision, as the PTX that a GPU newer than the library
  # gets: it takes half the time of code, and the same texts are refused.
  OMP_WAIT_POLICY=passive "$bin/halfnote-collect-chains" tests/fixtures/exporters \
    --precisions bf16 --architectures 999
}

# The other targets need the importer and more built with clang: scripts/fuzz.sh runs all. 64 s of
# fuzzing, two targets at a time.
leg_fuzz() {
  local status=0 first
  scripts/fuzz.sh --light --replay || return 1
  scripts/fuzz.sh policy deepspeed safetensors manifest --no-build --seconds 8 &
  first=$!
  scripts/fuzz.sh idx cifar npy npz --no-build --seconds 8 || status=1
  wait "$first" || status=1
  return "$status"
}

say() { printf '\n== %s\n' "$*"; }
names() { printf '%s\n' "${legs[@]}" | awk '{print $1}'; }
needs_build() { printf '%s\n' "${legs[@]}" | awk -v n="$1" '$1 == n {print $2}' | grep -q yes; }

setup=1
wanted=()
for argument in "$@"; do
  case "$argument" in
    --quick) wanted+=(checks build unit) ;;
    --no-setup) setup=0 ;;
    --list) printf '%s\n' "${legs[@]}"; exit 0 ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *)
      if ! names | grep -qxF -- "$argument"; then
        echo "test: unknown leg or option '$argument' (see scripts/test.sh --help, --list)" >&2
        exit 2
      fi
      wanted+=("$argument")
      ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || mapfile -t wanted < <(names)
for leg in "${wanted[@]}"; do
  if needs_build "$leg"; then wanted+=(build); break; fi
done

mkdir -p "$logs"
table=()
failed=0
broken=0  # the build, or the set-up, that the later legs stand on

# run_leg NAME: runs leg_NAME in a subshell that ends at its first error, and notes the time.
run_leg() {
  local leg=$1 begin status
  if [ "$broken" = 1 ]; then
    table+=("$(printf '%-12s %9s  not run' "$leg" -)")
    return
  fi
  say "$leg"
  begin=$(date +%s.%N)
  (set -e; "leg_$leg")
  status=$?
  local minutes
  minutes=$(awk -v b="$begin" -v e="$(date +%s.%N)" 'BEGIN {printf "%.1f", (e - b) / 60}')
  if [ "$status" = 0 ]; then
    table+=("$(printf '%-12s %9s  pass' "$leg" "$minutes")")
    return
  fi
  table+=("$(printf '%-12s %9s  FAIL' "$leg" "$minutes")")
  failed=1
}

begin_all=$SECONDS
if [ "$setup" = 1 ]; then
  run_leg setup
  broken=$failed
fi
for leg in $(names); do
  printf '%s\n' "${wanted[@]}" | grep -qxF "$leg" || continue
  before=$failed
  failed=0
  if needs_build "$leg" && [ "${build_failed:-0}" = 1 ]; then
    table+=("$(printf '%-12s %9s  not run' "$leg" -)")
  else
    run_leg "$leg"
  fi
  [ "$leg" = build ] && build_failed=$failed
  failed=$((before | failed))
done

say "minutes per leg"
printf '%-12s %9s\n' leg minutes
printf '%s\n' "${table[@]}"
all=$(awk -v s=$((SECONDS - begin_all)) 'BEGIN {printf "%.1f", s / 60}')
printf '%-12s %9s  %s\n' all "$all" "$([ "$failed" = 0 ] && echo pass || echo FAIL)"
exit "$failed"
