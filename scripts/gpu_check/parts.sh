# The parts of a check; sourced by gpu_check.sh. A part is part_NAME: it calls row() for each thing
# that it has seen, and runs commands through limited(), so that it ends in time.

parts=(
  "device          streams, events, captured graphs, memory, a session of steps"
  "ops             every kernel against the CPU's, in all types"
  "cases           halfnote-cases on all fixtures in fp32, bf16, fp16"
  "sanitizer       compute-sanitizer: memcheck, racecheck, initcheck, synccheck"
  "determinism     10 runs of 5 steps each: the states have the same bytes"
  "memory          more than there is: an error that says how much is free"
  "bench-cifar_cnn beside PyTorch: the CIFAR CNN, batch 128"
  "bench-resnet50  beside PyTorch: ResNet-50, batch 256"
  "bench-bert      beside PyTorch: BERT-base, 32 by 512"
  "bench-gpt2      beside PyTorch: GPT-2 124M, 16 by 1024"
  "bench-vit       beside PyTorch: ViT-B/16, batch 128"
)
part_seconds=480

# limited LOG COMMAND…: until the part's time is over; both outputs go to LOG. 124: out of time.
limited() {
  local log=$1 left=$((deadline - SECONDS))
  shift
  [ "$left" -gt 0 ] || return 124
  timeout --kill-after=5 "$left" "$@" >>"$log" 2>&1
}

# run_part NAME OUT: its rows, its log and its JSON.
run_part() {
  local name=$1 out=$2 begin=$SECONDS status reason
  rows=() last_detail="" part_failed=0 part_passed=0
  deadline=$((SECONDS + part_seconds)) log=$out/$name.log
  : >"$log"
  echo "$name"
  if [ -n "$nothing" ]; then
    status="not run" reason=$nothing
  else
    case "$name" in
      bench-*) part_bench "${name#bench-}" ;;
      *) "part_$name" ;;
    esac
    if [ "$part_failed" = 1 ]; then
      status=fail
    elif [ "$part_passed" = 1 ]; then
      status=pass
    else
      status="not run"
    fi
    reason="$(printf '%s\n' "${rows[@]}" | grep -c '"status": "pass"') of ${#rows[@]} passed"
    [ "$status" != "not run" ] || reason=$last_detail
  fi
  write_json "$out/$name.json" "$name" "$status" "$reason" $((SECONDS - begin))
}

# run_tests NAME PROGRAM FILTER: a row for each test that failed, and one for all.
run_tests() {
  local name=$1 program=$2 filter=$3 status=0 passed line
  local own=$work/$name.log
  : >"$own"
  HALFNOTE_TEST_DEVICE=$device limited "$own" "$bin/$program" --gtest_brief=0 --gtest_color=no \
    --gtest_filter="$filter" || status=$?
  cat "$own" >>"$log"
  passed=$(grep -c '^\[       OK \]' "$own")
  while read -r line; do
    row "$line" fail "$(grep -B 8 -F "[  FAILED  ] $line" "$own" | grep -v '^\[' | head -n 6)"
  done < <(sed -n 's/^\[  FAILED  \] \([^ ]*\) (.* ms)$/\1/p' "$own")
  if [ "$status" = 0 ] && [ "$passed" -gt 0 ]; then
    row "$name" pass "$passed tests"
  else
    row "$name" fail "exit code $status (124: out of time), $passed tests passed"
  fi
}

part_device() { run_tests device halfnote_cuda_test 'TestedDevice.*:DeviceSession.*'; }
part_memory() { run_tests memory halfnote_cuda_test '*OutOfMemory*'; }

part_ops() {
  run_tests kernels halfnote_cuda_test 'Cuda*:UpdateGroup.*:GradientJudgement.*:ChannelsLast.*'
  run_tests families halfnote_kernels_test '*'
}

# The fixtures come first, in all precisions: they must be seen even where the time runs out.
part_cases() {
  local set precision
  for set in models exporters; do
    for precision in fp32 bf16 fp16; do run_cases "$set" "$precision"; done
  done
}

# run_cases SET PRECISION: a row for each case that failed, and one for all. What has no kernel for
# CUDA is told as such, with the ops.
run_cases() {
  local name="$1 $2" own=$work/cases.$1.$2.log line status=0
  : >"$own"
  limited "$own" "$bin/halfnote-cases" --precision "$2" --device "$device" "$fixtures/$1" ||
    status=$?
  cat "$own" >>"$log"
  while read -r line; do
    case "$line" in
      *"no kernel on this device"* | *"no control flow on this device"*)
        [[ "$line" != *" FAIL"* ]] || row "$name ${line%% *}" "not run" "$line" ;;
      *" FAIL"*) row "$name ${line%% *}" fail "$line" ;;
    esac
  done <"$own"
  line=$(tail -n 1 "$own")
  if [ "$status" = 124 ]; then
    row "$name" fail "out of time"
  elif [[ "$line" =~ ^([0-9]+)\ passed ]] && [ "${BASH_REMATCH[1]}" -gt 0 ]; then
    row "$name" pass "$line"
  else
    row "$name" fail "exit code $status: $line"
  fi
}

part_sanitizer() {
  local tool status own sanitizer candidate
  sanitizer=$(command -v compute-sanitizer)
  for candidate in "${cuda_folders%%:*}"/../bin /usr/local/cuda*/bin; do
    [ -n "$sanitizer" ] || [ ! -x "$candidate/compute-sanitizer" ] ||
      sanitizer=$candidate/compute-sanitizer
  done
  if [ -z "$sanitizer" ]; then
    row compute-sanitizer "not run" "not installed (it comes with CUDA's toolkit)"
    return
  fi
  local all_of_it=$deadline begin=$SECONDS tools=(memcheck racecheck initcheck synccheck) i
  for i in "${!tools[@]}"; do
    tool=${tools[$i]} own=$work/${tools[$i]}.log status=0
    deadline=$((begin + (i + 1) * (all_of_it - begin) / ${#tools[@]}))
    : >"$own"
    HALFNOTE_TEST_DEVICE=$device limited "$own" "$sanitizer" --tool "$tool" --error-exitcode 99 \
      "$bin/halfnote_cuda_test" --gtest_brief=1 --gtest_filter='Cuda*:DeviceSession.Trains*' ||
      status=$?
    cat "$own" >>"$log"
    case "$status" in
      0) row "$tool" pass "$(grep 'SUMMARY' "$own" | tail -n 1)" ;;
      124) row "$tool" "not run" "out of time" ;;
      *) row "$tool" fail "exit code $status: $(grep -E 'SUMMARY|Error' "$own" | tail -n 1)" ;;
    esac
  done
  deadline=$all_of_it
}

# compile_case MODEL PRECISION OUT
compile_case() {
  local folder=$fixtures/models/$1 loss
  loss=$(sed -n 's/^ *"loss_output": "\(.*\)",\{0,1\}$/\1/p' "$folder/case.json" | head -n 1)
  "$bin/halfnote" compile "$folder/model.onnx" -o "$3" --precision "$2" --loss-output "$loss" \
    --optimizer adamw --lr 0.001
}

part_determinism() {
  local model precision run sums artifact name
  for model in mlp cifar_cnn bert gpt2; do
    for precision in fp32 bf16 fp16; do
      name="$model $precision" artifact=$work/determinism.onnx sums=""
      if ! compile_case "$model" "$precision" "$artifact" >>"$log" 2>&1; then
        row "$name" fail "does not compile: $(tail -n 1 "$log")"
        continue
      fi
      for run in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "$work/states"
        limited "$log" "$bin/halfnote-step" "$artifact" \
          "$fixtures/models/$model/inputs.npz" 5 "$work/states" "$device" || break
        sums+="$(cat "$work/states"/step-*.bin | sha256sum)"$'\n'
      done
      if [ "$(printf '%s' "$sums" | wc -l)" != 10 ]; then
        row "$name" fail "run $run: $(tail -n 1 "$log")"
      elif [ "$(printf '%s' "$sums" | sort -u | wc -l)" = 1 ]; then
        row "$name" pass "10 runs, the same bytes"
      else
        row "$name" fail "$(printf '%s' "$sums" | sort -u | wc -l) different results in 10 runs"
      fi
    done
  done
}

# part_bench MODEL: the numbers are of bench/pytorch/gpu.py, a line of JSON a comparison.
part_bench() {
  if ! "$python" -c 'import torch, transformers, torchvision, onnx' >>"$log" 2>&1; then
    row "$1" "not run" "$python lacks torch, torchvision, transformers or onnx \
(bench/pytorch/requirements.txt); --python names another one"
    return
  fi
  local lines=$work/bench.jsonl status=0 line name
  rm -f "$lines"
  limited "$log" "$python" "$here/bench/pytorch/gpu.py" --model "$1" --bin "$bin" \
    --device "$device" --work "$work" --out "$lines" || status=$?
  while read -r line; do
    name=$(printf '%s' "$line" | sed -n 's/.*"name": "\([^"]*\)".*/\1/p')
    row "$name" "$(printf '%s' "$line" | sed -n 's/.*"status": "\([^"]*\)".*/\1/p')" "$line"
  done < <(cat "$lines" 2>/dev/null)
  [ "$status" = 0 ] || row "$1" fail "exit code $status (124: out of time): $(tail -n 1 "$log")"
}
