#!/usr/bin/env bash
# Every suite of the tests of kernels is named in the lists of scripts/gpu_check/parts.sh, or left
# out here, with the reason: tests/gpu_check/suites.sh BUILD-FOLDER
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${1:?usage: tests/gpu_check/suites.sh BUILD-FOLDER}
failed=0

fail() {
  echo "FAIL: $*"
  failed=1
}

# What the sanitizer does not see. Nothing of these runs on a device:
not_sanitized='Blas.*:Brief.*:CudaDivisor.*:CudaNumbers.*:CudaTable.*:Cudnn.*:DevicePasses.*:'
not_sanitized+='DeviceRefusals.*:Dnn.*:KernelFolder.*:Library.*:NvrtcTest.*:OpenDevice.*:'
not_sanitized+='BranchRaces.*:PlanFloor.*:RnnRules.*:'
# or on the emulation alone:
not_sanitized+='ChannelWalk.*:EmulatedDevice.*:EmulatorBounds.*:EmulatorTest.*:Products.*:'
# Streams, and whole sessions, whose kernels have suites of their own: too long under such a tool.
not_sanitized+='All/DeviceControl.*:Cases/RareOperators.*:CudaTune.*:DeviceArena.*:'
not_sanitized+='DeviceEvaluation.*:DeviceFaults.*:DeviceProfile.*:EpilogueTraining.*:'
not_sanitized+='ModelChains.*:SlowSteps.*:SteadyStep.*:TestedDevice.*'
export not_sanitized

# Every suite that the parts name or leave out is there: the lists follow the tests. cuDNN's are
# compiled with the toolkit alone.
grep -q '^HALFNOTE_CUDA:STRING=ON' "$build/CMakeCache.txt" && toolkit=yes || toolkit=no
for list in "host_suites halfnote_cuda_test" "device_suites halfnote_cuda_test" \
  "cpu_suites halfnote_kernels_test" "sanitized halfnote_cuda_test" \
  "not_sanitized halfnote_cuda_test"; do
  while read -r pattern; do
    [ "$toolkit $pattern" != 'no Cudnn.*' ] || continue
    "$build/bin/${list#* }" --gtest_list_tests --gtest_filter="$pattern" | grep -q '^  ' ||
      fail "${list% *}: no test is called $pattern"
  done < <(bash -c ". scripts/gpu_check/parts.sh
    printf '%s\n' \"\${${list% *}[@]}\"" | tr ':' '\n')
done
# suites [OPTION]: of halfnote_cuda_test.
suites() { "$build/bin/halfnote_cuda_test" --gtest_list_tests "$@" | grep -oE '^[^ ]+\.' | sort; }
seen=$(bash -c '. scripts/gpu_check/parts.sh; IFS=:; echo "${sanitized[*]}"')
seen=$(comm -23 <(suites) <(suites --gtest_filter="$seen:$not_sanitized") | tr '\n' ' ')
[ -z "$seen" ] || fail "neither sanitized nor left out: $seen"

exit "$failed"
