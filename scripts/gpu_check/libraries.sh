# Finds CUDA 13's libraries and the driver; sourced by gpu_check.sh.

wanted_libraries=(libcublasLt.so.13 libcudnn.so.9 libnvrtc.so.13)

# Folders in which CUDA's libraries may lie, in order: named, of toolkits, of Python environments.
library_folders() {
  local folder interpreter
  printf '%s' "${HALFNOTE_CUDA_LIBRARIES:-}" | tr ':' '\n'
  echo
  for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-13*; do
    [ -z "$folder" ] || printf '%s\n' "$folder/lib64" "$folder/lib" \
      "$folder/targets/$(uname -m)-linux/lib"
  done
  for interpreter in "$python" "${VIRTUAL_ENV:-/none}/bin/python" \
    "${CONDA_PREFIX:-/none}/bin/python"; do
    command -v "$interpreter" >/dev/null 2>&1 || continue
    "$interpreter" -c 'import site, sys
for folder in sys.path + site.getsitepackages() + [site.getusersitepackages()]:
    for name in "cu13", "cublas", "cudnn", "cuda_nvrtc":
        print(f"{folder}/nvidia/{name}/lib")' 2>/dev/null
  done
}

# find_library FILE: prints its folder, or "system" if the loader finds it by itself.
find_library() {
  local folder
  while read -r folder; do
    [ -n "$folder" ] && [ -e "$folder/$1" ] || continue
    (cd "$folder" && pwd)
    return
  done < <(library_folders)
  ldconfig -p 2>/dev/null | grep -q -F "$1" && echo system
}

# Sets cuda_folders to the folders of all libraries, colons between them, and cublas_version; or
# `nothing` to what is missing.
find_cuda_folders() {
  local library folder named=""
  for library in "${wanted_libraries[@]}"; do
    folder=$(find_library "$library")
    if [ -z "$folder" ]; then
      nothing="no $library in a toolkit or in the nvidia packages of $python; install CUDA \
13's libraries and cuDNN 9, or name their folders in HALFNOTE_CUDA_LIBRARIES"
      cuda_folders=none
      return
    fi
    case ":$cuda_folders:" in
      *":$folder:"*) ;;
      *)
        cuda_folders=${cuda_folders:+$cuda_folders:}$folder
        [ "$folder" = system ] || named=${named:+$named:}$folder
        ;;
    esac
  done
  folder=${cuda_folders%%:*}
  [ "$folder" = system ] ||
    cublas_version=$(readlink -f "$folder/${wanted_libraries[0]}" | sed 's/.*\.so\.//')
  [ -n "$named" ] || return
  export HALFNOTE_CUDA_LIBRARIES=$named
  # cuDNN opens CUDA's compiler and cuBLAS by their bare names.
  export own_libraries=$own_libraries:$named
}

# versions_found: cuBLAS, cuDNN and NVRTC, as their files are named. Those of a wheel carry the
# number of the interface alone: its metadata says the version.
versions_found() {
  local pair library folder about wheel
  for pair in cublas:libcublasLt.so.13 cudnn:libcudnn.so.9 nvrtc:libnvrtc.so.13; do
    library=${pair#*:}
    folder=$(find_library "$library" | head -n 1)
    about="not found"
    [ "$folder" != system ] || about="the system's"
    if [ -e "$folder/$library" ]; then
      about=$(readlink -f "$folder/$library")
      about=${about##*.so.}
      for wheel in "$folder"/../../../nvidia_*"${pair%:*}"*.dist-info; do
        [ ! -e "$wheel" ] || { about=${wheel%.dist-info}; about=${about##*-}; }
      done
    fi
    printf '%s %s, ' "${pair%:*}" "$about"
  done | sed 's/, $//'
}

# ask_gpu FIELDS: what nvidia-smi says of this GPU.
ask_gpu() {
  local index=${device#cuda}
  index=${index#:}
  nvidia-smi --query-gpu="$1" --format=csv,noheader --id="${index:-0}" 2>/dev/null
}

# gpu_state: clocks, power, heat and what slows the GPU down, a bit a reason; nothing where nobody
# tells. The reasons have another name since driver 535.
gpu_state() {
  local reasons said asked=clocks.sm,clocks.mem,power.draw,temperature.gpu
  [ "$device" != cuda-emulated ] && command -v nvidia-smi >/dev/null 2>&1 || return 0
  for reasons in clocks_event_reasons.active clocks_throttle_reasons.active; do
    said=$(ask_gpu "$asked,$reasons") || continue
    echo "$asked,$reasons: $said"
    return
  done
}

# Sets gpu_name, driver_version, cuda_folders, cublas_version, and `nothing`: why nothing can be
# checked, or an empty string.
find_machine() {
  gpu_name=unknown driver_version=unknown cublas_version=unknown cuda_folders=none nothing=""
  library_versions=unknown
  if [ "$device" = cuda-emulated ]; then
    gpu_name="none, emulated on the host"
    echo "gpu_check: $device: this says nothing about a GPU"
    return
  fi
  if command -v nvidia-smi >/dev/null 2>&1; then
    local line
    line=$(ask_gpu name,driver_version | head -n 1)
    [[ "$line" != *", "* ]] || { gpu_name=${line%, *}; driver_version=${line##*, }; }
  fi
  cuda_folders=""
  find_cuda_folders
  # The program's own words about the driver come first: without one nothing else matters.
  local said
  said=$(probe 2>&1) || nothing=$said
  echo "gpu_check: $device: $gpu_name, driver $driver_version, CUDA's libraries: $cuda_folders"
  library_versions=$(versions_found)
  echo "gpu_check: $library_versions"
  local asked=memory.total,memory.used,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem
  command -v nvidia-smi >/dev/null 2>&1 &&
    nvidia-smi --format=csv --query-gpu="$asked,power.limit,temperature.gpu" 2>/dev/null
  [ -z "$nothing" ] || echo "gpu_check: $nothing" >&2
}

# One training step of the smallest model; its message if that fails for want of a device, or does
# not come to its end: a driver may hang.
probe() {
  local deadline=$((SECONDS + probe_seconds)) said=$work/probe.said code=0
  compile_case mlp fp32 "$work/probe.onnx" >/dev/null || return 1
  limited_ours "$said" "$bin/halfnote-step" "$work/probe.onnx" \
    "$fixtures/models/mlp/inputs.npz" 1 "$work/probe" "$device" || code=$?
  cat "$said"
  if [ "$code" = 124 ] || [ "$code" = 137 ]; then
    echo "the first step on $device did not end in $probe_seconds s"
    return 1
  fi
  [ "$code" != 10 ]
}
