# The parts of a check; sourced by gpu_check.sh. A part is part_NAME: it calls row() for each thing
# that it has seen, and runs commands through limited() or each(), so that it ends in time.

# In the order in which they tell most where the time on a GPU is short: whether it works at all,
# every kernel, the figures that come quickly, the models, the figures that need minutes of
# compilation by PyTorch; what repeats the same with other questions comes last.
parts=(
  "device             streams, events, captured graphs, memory, a session of steps"
  "ops                every kernel against the CPU's, in all types"
  "bench-bert         beside PyTorch (eager) and our own fp32: BERT-base, 32 by 512"
  "bench-gpt2         the same: GPT-2 124M, 16 by 1024"
  "bench-cifar_cnn    the same: the CIFAR CNN, batch 128"
  "bench-resnet50     the same: ResNet-50, batch 256"
  "bench-vit          the same: ViT-B/16, batch 128"
  "bench-bert_dropout as BERT is trained, with a dropout of 0.1: beside PyTorch (eager) alone"
  "bench-gpt2_dropout the same: GPT-2"
  "tuned-resnet50     ours with --tune beside PyTorch (eager): ResNet-50"
  "tuned-cifar_cnn    the same: the CIFAR CNN"
  "cases              halfnote-cases on all fixtures in fp32, bf16, fp16"
  "compiled-bert      beside torch.compile: BERT-base"
  "compiled-gpt2      the same: GPT-2 124M"
  "compiled-cifar_cnn the same: the CIFAR CNN"
  "compiled-resnet50  the same: ResNet-50"
  "compiled-vit       the same: ViT-B/16"
  "memory             more than there is: an error that says how much is free"
  "determinism        10 runs of 5 steps each: the states have the same bytes"
  "sanitizer          compute-sanitizer: memcheck, racecheck, initcheck, synccheck"
)

# ours COMMAND…: one of our programs. The libraries that were packed, and CUDA's, are for these
# alone: PyTorch and the compilers that it starts take those of the machine.
ours() { LD_LIBRARY_PATH=$own_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"; }
export -f ours

# limited LOG COMMAND…: until the part's time is over; both outputs go to LOG. 124: out of time.
limited() {
  local log=$1 left=$((deadline - SECONDS))
  shift
  [ "$left" -gt 0 ] || return 124
  timeout --kill-after=5 "$left" "$@" >>"$log" 2>&1
}

# limited_ours LOG COMMAND…: the same for one of our programs.
limited_ours() {
  local log=$1
  shift
  limited "$log" bash -c 'ours exec "$@"' ours "$@"
}

# each FOLDER COMMAND…: one of our programs with each line of the input as its last word, a process
# a line and several at a time, until the part's time is over. One of them may spoil its device, or
# die: the others do not see it. The output goes to FOLDER/NUMBER.log, the line to NUMBER.name and
# the exit code to NUMBER.code; 124: out of time. missing() says what left none. With --more what
# an earlier call was given in the same lines, and brought to its end, stays as it is.
each() {
  local folder=$1
  shift
  mkdir -p "$folder"
  cat >"$folder.given"
  if [ "${more:-no}" = no ] || ! cmp -s "$folder.given" "$folder/given"; then
    rm -rf "$folder" && mkdir -p "$folder"
  fi
  mv "$folder.given" "$folder/given"
  still_to_run "$folder" |
    until=$(($(date +%s) + deadline - SECONDS)) folder=$folder \
      xargs -0 -r -P "$jobs" -I{} bash -c 'number=${1%%	*} name=${1#*	} code=0
      shift
      at=$folder/$number left=$((until - $(date +%s)))
      echo "$name" >"$at.name"
      if [ "$left" -gt 0 ]; then
        timeout --kill-after=5 "$left" bash -c "ours exec \"\$@\"" ours "$@$name" >"$at.log" 2>&1 ||
          code=$?
        [ "$code" != 137 ] || [ "$(date +%s)" -lt "$until" ] || code=124
      else
        code=124
      fi
      echo "$code" >"$at.code"' each {} "$@" 2>/dev/null
}

# numbered FOLDER: the lines that each() was given in this folder, with their numbers.
numbered() { awk '{ printf "%05d\t%s\n", NR, $0 }' "$1/given"; }

# still_to_run FOLDER: of these, a zero behind each, what has no exit code but "out of time". Those
# that were never begun come first: one that hangs keeps no other waiting twice.
still_to_run() {
  local number line begun=()
  while IFS=$'\t' read -r number line; do
    case "$(cat "$1/$number.code" 2>/dev/null)" in
      '' | 124) rm -f "$1/$number.code" ;;
      *) continue ;;
    esac
    if [ -e "$1/$number.log" ]; then
      begun+=("$number"$'\t'"$line")
    else
      printf '%s\t%s\0' "$number" "$line"
    fi
  done < <(numbered "$1")
  [ ${#begun[@]} = 0 ] || printf '%s\0' "${begun[@]}"
}

# missing FOLDER: the lines that each() was given in this folder and that left no exit code.
missing() {
  numbered "$1" | while IFS=$'\t' read -r number line; do
    [ -s "$1/$number.code" ] || echo "$line"
  done
}

# lost_row NAME: of such a line. Counts it in failed or late of the caller.
lost_row() {
  if [ "$SECONDS" -ge "$deadline" ]; then
    row "$1" unfinished "it left no result in time"
    late=$((late + 1))
  else
    row "$1" fail "it left no result"
    failed=$((failed + 1))
  fi
}

# run_part NAME OUT: its rows, its log and its JSON. Until it has ended the JSON says "unfinished",
# and the rows are in NAME.rows: what a part has seen stays where it is killed.
run_part() {
  local name=$1 out=$2 begin=$SECONDS status reason cut=no
  rows=() last_detail="" part_failed=0 part_passed=0 part_unfinished=0 part_complete=false
  gpu_before="" gpu_after=""
  part_rows=$out/$name.rows
  deadline=$((SECONDS + part_seconds)) log=$out/$name.log
  [ "$deadline" -le "$last_second" ] || { cut=yes deadline=$last_second; }
  # Only figures of this device and these programs are gone on with.
  [ "${more:-no}" = yes ] && is_of_this "$out/$name.json" || rm -f "$out/$name.jsonl"
  : >"$log"
  : >"$part_rows"
  echo "$name"
  write_json "$out/$name.json" "$name" unfinished "killed; its results are in $name.rows" 0
  if [ -n "$nothing" ]; then
    status="not run" reason=$nothing
  elif [ "$SECONDS" -ge "$last_second" ]; then
    status="not run" reason="no time is left of --total"
  else
    case "$name" in
      bench-* | tuned-* | compiled-*) figures "$name" "$out" ;;
      *) "part_$name" ;;
    esac
    [ "$part_unfinished" = 1 ] || part_complete=true
    if [ "$part_failed" = 1 ]; then
      status=fail
    elif [ "$part_unfinished" = 1 ]; then
      status=unfinished
    elif [ "$part_passed" = 1 ]; then
      status=pass
    else
      status="not run"
    fi
    reason="$(printf '%s\n' "${rows[@]}" | grep -c '"status": "pass"') of ${#rows[@]} passed"
    [ "$part_complete" = true ] || reason+=", the rest of it is still to run"
    [ "$status" != "not run" ] || reason=$last_detail
    # What fails for want of time is no find.
    [ "$cut" = no ] || [ "$SECONDS" -lt "$deadline" ] ||
      { status=unfinished part_complete=false reason="cut off by --total: $reason"; }
  fi
  write_json "$out/$name.json" "$name" "$status" "$reason" $((SECONDS - begin))
  rm -f "$part_rows"
}

# failed_tests LOG: a row for each test that failed; those with a parameter too.
failed_tests() {
  local line
  while read -r line; do
    row "$line" fail "$(grep -B 8 -F "[  FAILED  ] $line" "$1" | grep -v '^\[' | head -n 6)"
  done < <(sed -n 's/^\[  FAILED  \] \([^ ,]*\).* (.* ms)$/\1/p' "$1")
}

# summary_row NAME PASSED FAILED LATE DETAIL: of all that a part ran under this name. What passed
# nothing, and failed nothing in time, has failed.
summary_row() {
  local status=pass
  if [ "$3" != 0 ]; then
    status=fail
  elif [ "$4" != 0 ]; then
    status=unfinished
  elif [ "$2" = 0 ]; then
    status=fail
  fi
  row "$1" "$status" "$5"
}

# run_tests NAME PROGRAM FILTER: each suite in a process of its own. A row for each test that
# failed, one for each suite that did not get to its end, and one for all.
run_tests() {
  local name=$1 program=$2 filter=$3 folder=$work/$1.tests list=$work/$1.list
  local passed=0 failed=0 late=0 code own suite wanted seen
  export HALFNOTE_TEST_DEVICE=$device
  rm -f "$list"
  limited_ours "$list" "$bin/$program" --gtest_list_tests --gtest_filter="$filter" || {
    code=$?
    ended_row "$name" "$code" "the list of tests: $(tail -n 1 "$list" 2>/dev/null)"
    return
  }
  awk '/^[^ ]+\./ { if (line) print line; suite = $1; line = "" }
      /^  / { line = line (line ? ":" : "") suite $1 }
      END { if (line) print line }' "$list" |
    each "$folder" "$bin/$program" --gtest_brief=0 --gtest_color=no --gtest_filter=
  for own in "$folder"/*.code; do
    [ -e "$own" ] || break
    own=${own%.code} code=$(cat "$own.code")
    suite=$(sed 's/\..*//' "$own.name") # of Suite.Test:Suite.Test
    [ ! -e "$own.log" ] || cat "$own.log" >>"$log"
    if [ "$code" = 0 ]; then
      wanted=$(($(tr -cd : <"$own.name" | wc -c) + 1)) # colons stand between names
      seen=$(grep -cE '^\[ +(OK|SKIPPED) +\] .* ms\)$' "$own.log")
      passed=$((passed + $(grep -c '^\[       OK \]' "$own.log")))
      [ "$seen" -lt "$wanted" ] || continue
      failed=$((failed + 1))
      row "$suite" fail "$seen of $wanted tests came to their end"
      continue
    fi
    [ ! -e "$own.log" ] || failed_tests "$own.log"
    [ "$code" = 1 ] || ended_row "$suite" "$code" "$(tail -n 1 "$own.log" 2>/dev/null)"
    if [ "$code" = 124 ]; then late=$((late + 1)); else failed=$((failed + 1)); fi
  done
  unset HALFNOTE_TEST_DEVICE
  while read -r suite; do
    lost_row "${suite%%.*}"
  done < <(missing "$folder")
  summary_row "$name" "$passed" "$failed" "$late" \
    "$passed tests passed; of suites $failed failed, $late ran out of time"
}

device_suites='TestedDevice.*:DeviceSession.*:DeviceArena.*:DeviceFaults.*:DeviceStream.*:'
device_suites+='Branches.*:All/DeviceControl.*:DeviceProfile.*'
part_device() { run_tests device halfnote_cuda_test "$device_suites"; }
part_memory() { run_tests memory halfnote_cuda_test '*OutOfMemory*'; }

# Suites of halfnote_kernels_test that look at the CPU alone.
cpu_suites='AttentionTiles*:BatchNormalizationRefusals*:ChannelBlocks*:CpuInfo*:CpuKernels*:'
cpu_suites+='Dynamic*:FastAdafactor*:FastBatchNormalization*:FastCumSum*:FastIndexedRows*:'
cpu_suites+='FastInstanceNormalization*:FastLamb*:FastThinConv*:FastTopK*:FusedPointwise*:'
cpu_suites+='KeepBits*:KernelTable*:OneDnnRefusals*:OptimizerKernels*:Philox*:PointwiseProgram*:'
cpu_suites+='TiledProduct*:UpdateLoops*:VectorMath*'

# Suites of halfnote_cuda_test that look at the host and the emulation alone.
host_suites='BranchRaces.*:Dnn.*:EmulatedDevice.*:EmulatorTest.*:KernelFolder.*:Library.*:'
host_suites+='PlanFloor.*:RnnRules.*'

part_ops() {
  run_tests kernels halfnote_cuda_test "*-$host_suites:$device_suites:*OutOfMemory*"
  run_tests families halfnote_kernels_test "*-$cpu_suites"
}

# The fixtures come first, in all precisions: they must be seen even where the time runs out.
part_cases() {
  local set precision
  for set in models exporters; do
    for precision in fp32 bf16 fp16; do run_cases "$set" "$precision"; done
  done
  # Recurrent layers in f32 are cuDNN's; here our own compute the same models.
  HALFNOTE_RECURRENT=own run_cases models fp32 own_recurrent lstm_lm gru_classifier
  # These models are too small for an attention of one node to pay, in f32; and without a plan file
  # no product has an epilogue.
  for precision in fp32 bf16 fp16; do
    HALFNOTE_ATTENTION=always run_cases models "$precision" attention bert gpt2 llama vit
    HALFNOTE_EPILOGUES=always run_cases models "$precision" epilogues mlp bert dlrm gpt2 vit
  done
}

# run_cases SET PRECISION [FORM CASE…]: each case, or these, in a process of its own; a row for each
# that failed, and one for all. What has no kernel for CUDA is told as such, with the ops.
run_cases() {
  local set=$1 precision=$2 name="$1 $2${3:+, $3}" folder="$work/cases.$1.$2${3:+.$3}" list
  local own case code line passed=0 failed=0 late=0 lacking=0
  shift $(($# < 3 ? $# : 3))
  list=$(ls -d "$fixtures/$set"/*/ 2>/dev/null | sed 's,/$,,')
  [ $# = 0 ] || list=$(grep -E "/($(IFS='|'; echo "$*"))\$" <<<"$list")
  [ -n "$list" ] || { row "$name" "not run" "not packed"; return; }
  each "$folder" "$bin/halfnote-cases" --precision "$precision" --device "$device" "" <<<"$list"
  for own in "$folder"/*.code; do
    [ -e "$own" ] || break
    own=${own%.code} code=$(cat "$own.code") case=$(basename "$(cat "$own.name")")
    [ ! -e "$own.log" ] || cat "$own.log" >>"$log"
    [ "$code" != 0 ] || { passed=$((passed + 1)); continue; }
    line=$(grep -m 1 -F " FAIL" "$own.log" 2>/dev/null || tail -n 1 "$own.log" 2>/dev/null)
    if grep -qF 'no kernel on this device' "$own.log" 2>/dev/null; then
      lacking=$((lacking + 1))
      row "$name $case" "not run" "$line"
    else
      ended_row "$name $case" "$code" "$line"
      if [ "$code" = 124 ]; then late=$((late + 1)); else failed=$((failed + 1)); fi
    fi
  done
  while read -r case; do
    lost_row "$name $(basename "$case")"
  done < <(missing "$folder")
  summary_row "$name" "$passed" "$failed" "$late" \
    "$passed passed, $failed failed, $late out of time, $lacking without a kernel"
}

# Every kind of kernel, those with most in shared memory and those that are generated first; one
# line is a process. A tool takes 10 to 100 times as long as the test. What is left out stands in
# tests/gpu_check/suites.sh, with the reasons.
sanitized=(CudaAttention.\* Chain.\* CudaLayerNorm.\* CudaNormalization.\* CudaReduction.\*
  CudaLoss.\* UpdateGroup.\*:GradientJudgement.\*:KeptStates.\* CudaContraction.\* CudaStateful.\*
  CudaMovement.\* CudaScatter.\* CudaElementwise.\* ChannelsLast.\* ChannelsLastGroups.\*
  CudaPool.\*:CudaPoolGrad.\*:CudaKeptMaxPool.\*:CudaDepthwise.\* CudaAlong.\*
  CudaProducts.\*:Epilogues.\*
  CudaPlainProduct.\*:CudaQuantizedProduct.\* CudaArithmetic.\* CudaIntegerReduction.\*
  CudaLines.\*:CudaRows.\* CudaGenerate.\*:CudaCast.\* CudaRegions.\* CudaResize.\* CudaRandom.\*
  CudaSignal.\*:CudaDeterminant.\* CudaQuantized.\* CudaRecurrent.TrainingOnTheLibrary
  DeviceStream.\* DeviceSession.TrainsAsOnTheCpu Branches.ChangeNoBit ChannelsLastLarge.\*
  CudaLarge.\* ChannelsLastProgram.\*)

part_sanitizer() {
  local tool own sanitizer candidate failed=0 late=0
  sanitizer=$(command -v compute-sanitizer)
  for candidate in "${cuda_folders%%:*}"/../bin /usr/local/cuda*/bin; do
    [ -n "$sanitizer" ] || [ ! -x "$candidate/compute-sanitizer" ] ||
      sanitizer=$candidate/compute-sanitizer
  done
  if [ -z "$sanitizer" ]; then
    row compute-sanitizer "not run" "not installed (it comes with CUDA's toolkit)"
    return
  fi
  local all_of_it=$deadline begin=$SECONDS tools=(memcheck racecheck initcheck synccheck) i suite
  # Memory of its own for each buffer: memcheck finds who goes beyond it.
  export HALFNOTE_TEST_DEVICE=$device HALFNOTE_TEST_MEMORY=own
  for i in "${!tools[@]}"; do
    tool=${tools[$i]}
    deadline=$((begin + (i + 1) * (all_of_it - begin) / ${#tools[@]}))
    printf '%s\n' "${sanitized[@]}" | each "$work/$tool" "$sanitizer" --tool "$tool" \
      --error-exitcode 99 "$bin/halfnote_cuda_test" --gtest_brief=1 --gtest_filter=
    for own in "$work/$tool"/*.code; do
      [ -e "$own" ] || break
      own=${own%.code}
      [ ! -e "$own.log" ] || cat "$own.log" >>"$log"
      sanitizer_row "$tool $(sed 's/\..*//' "$own.name")" "$(cat "$own.code")" "$own.log"
    done
    while read -r suite; do
      lost_row "$tool ${suite%%.*}"
    done < <(missing "$work/$tool")
  done
  unset HALFNOTE_TEST_DEVICE HALFNOTE_TEST_MEMORY
  deadline=$all_of_it
}

# sanitizer_row NAME STATUS LOG
sanitizer_row() {
  local seen
  seen=$(grep -E 'SUMMARY|Error' "$3" 2>/dev/null | tail -n 1)
  if grep -qsi 'device not supported' "$3"; then
    row "$1" "not run" "$(grep -i -m 1 'device not supported' "$3")"
  elif [ "$2" = 0 ]; then
    row "$1" pass "$seen"
  else
    ended_row "$1" "$2" "$seen"
  fi
}

# compile_case MODEL PRECISION OUT
compile_case() {
  local folder=$fixtures/models/$1 loss
  loss=$(sed -n 's/^ *"loss_output": "\(.*\)",\{0,1\}$/\1/p' "$folder/case.json" | head -n 1)
  ours "$bin/halfnote" compile "$folder/model.onnx" -o "$3" --precision "$2" --loss-output "$loss" \
    --optimizer adamw --lr 0.001
}

part_determinism() {
  local model precision
  for model in mlp cifar_cnn bert gpt2 lstm_lm gru_classifier; do
    for precision in fp32 bf16 fp16; do run_again "$model" "$precision"; done
  done
  # For their other kernels: BatchNormalization and pools channels last, depthwise convolutions,
  # embeddings and scattered sums.
  for model in resnet50_narrow unet mobilenet_v3 dlrm gcn; do run_again "$model" bf16; done
}

# run_again MODEL PRECISION: the runs of a model stand beside each other: a process each, one
# artifact. Of the states of a run only their sum stays, in sumNUMBER.
run_again() {
  local name="$1 $2" inputs=$fixtures/models/$1/inputs.npz artifact=$work/determinism.onnx
  local folder=$work/runs.$1.$2 sums written runs=10 code
  if ! compile_case "$1" "$2" "$artifact" >>"$log" 2>&1; then
    row "$name" fail "does not compile: $(tail -n 1 "$log")"
    return
  fi
  seq "$runs" | device=$device each "$folder" bash -c 'states=$3/states$4
    rm -rf "$states" "$3/sum$4"
    "$0" "$1" "$2" 5 "$states" "$device" || exit
    # A run that wrote nothing is not like another one.
    [ "$(cat "$states"/step-*.bin | head -c 1 | wc -c)" = 0 ] ||
      cat "$states"/step-*.bin | sha256sum >"$3/sum$4"
    rm -rf "$states"' "$bin/halfnote-step" "$artifact" "$inputs" "$folder" ""
  cat "$folder"/*.log >>"$log" 2>/dev/null
  sums=$(cat "$folder"/sum* 2>/dev/null | sort -u | wc -l)
  written=$(cat "$folder"/sum* 2>/dev/null | wc -l)
  code=$(cat "$folder"/*.code | grep -vx 0 | sort -n | head -n 1)
  # What ran out of time is still to run, whatever others did.
  ! grep -qsx 124 "$folder"/*.code || part_unfinished=1
  if [ -n "$(missing "$folder")" ]; then
    [ "$SECONDS" -lt "$deadline" ] || part_unfinished=1
    row "$name" fail "$(missing "$folder" | wc -l) of $runs runs left no result"
  elif [ "$sums" -gt 1 ]; then
    row "$name" fail "$sums different results in $runs runs"
  elif [ -n "$code" ]; then
    ended_row "$name" "$code" "$(tail -q -n 1 "$folder"/*.log 2>/dev/null | tail -n 1)"
  elif [ "$written" != "$runs" ]; then
    row "$name" fail "$written of $runs runs wrote their states"
  else
    row "$name" pass "$runs runs, the same bytes"
  fi
}

# figures PART OUT: what a part asks of part_bench.
figures() {
  local name=$1 out=$2 commit
  commit=$(cat "$here/COMMIT" 2>/dev/null)
  if [[ "$commit" == *-check && "$device" != cuda-emulated ]]; then
    row "$name" "not run" "$commit: its kernels are compiled with -O1, their times say nothing"
    return
  fi
  gpu_before=$(gpu_state)
  case "$name" in
    bench-*_dropout) part_bench "$name" "${name#bench-}" "$out" eager bf16,fp16 ;;
    bench-*) part_bench "$name" "${name#bench-}" "$out" eager,own-tf32,own-fp32 bf16,fp16 ;;
    # Measuring is what takes long: fp16 takes the time that bf16 left.
    tuned-*) part_bench "$name" "${name#tuned-}" "$out" eager "bf16 fp16" --tune ;;
    compiled-*) part_bench "$name" "${name#compiled-}" "$out" compiled bf16,fp16 ;;
  esac
  gpu_after=$(gpu_state)
}

# part_bench PART MODEL OUT KINDS PRECISIONS [OPTION…]: the numbers are of bench/pytorch/gpu.py,
# which has the options, a line of JSON a comparison; it is called for each word of PRECISIONS. The
# exported model stays for the next part that wants it, and what has a line is not measured again.
part_bench() {
  local model=$2 lines=$3/$1.jsonl kinds=$4 precisions=$5 some status=0 line name
  shift 5
  if ! limited "$log" "$python" -c 'import torch, transformers, torchvision, onnx'; then
    row "$model" "not run" "$python lacks torch, torchvision, transformers or onnx \
(bench/pytorch/requirements.txt); --python names another one"
    return
  fi
  for some in $precisions; do
    limited "$log" "$python" "$here/bench/pytorch/gpu.py" --model "$model" --bin "$bin" \
      --device "$device" --work "$work" --out "$lines" --libraries "$own_libraries" \
      --against "$kinds" --precisions "$some" --keep "$@" || { status=$?; break; }
  done
  while read -r line; do
    name=$(printf '%s' "$line" | sed -n 's/.*"name": "\([^"]*\)".*/\1/p')
    row "$name" "$(printf '%s' "$line" | sed -n 's/.*"status": "\([^"]*\)".*/\1/p')" "$line"
  done < <(cat "$lines" 2>/dev/null)
  [ "$status" = 0 ] || ended_row "$model" "$status" "$(tail -n 1 "$log")"
}
