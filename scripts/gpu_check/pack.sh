# The folder that goes to the machine with the GPU; sourced by scripts/gpu_check.sh.

packed_programs=(halfnote halfnote-cases halfnote-step halfnote-steps halfnote_cuda_test
  halfnote_kernels_test)
packed_fixtures=models,exporters,kernels,torch

# needed_libraries PROGRAM…: the files that the loader takes, without glibc (the machine's own must
# be used) and CUDA's (opened by the programs themselves).
needed_libraries() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -v -E '/(libc|libm|libpthread|libdl|librt|libresolv|ld-linux[^/]*)\.so|/lib(cu|nv)[^/]*$'
}

pack_command() {
  local bin=build/cuda/bin out=build/gpu_check most=60 fixtures=$packed_fixtures
  local program library folder data
  while [ $# -gt 0 ]; do
    case "$1" in
      --bin) bin=$(value "$@") || exit 2; shift ;;
      --out) out=$(value "$@") || exit 2; shift ;;
      --fixtures) fixtures=$(value "$@") || exit 2; shift ;;
      --most) most=$(value "$@") || exit 2; shift ;;
      *) wrong "unknown option '$1'" ;;
    esac
    shift
  done
  for data in ${fixtures//,/ }; do
    [[ ",$packed_fixtures," == *",$data,"* ]] || wrong "no fixtures are named '$data'"
  done
  for program in "${packed_programs[@]}"; do
    [ -x "$bin/$program" ] ||
      wrong "$bin/$program is not there: build with -DHALFNOTE_CUDA=ON (preset cuda)"
  done
  grep -qF libcuda.so.1 "$bin/halfnote" || wrong "$bin/halfnote has no CUDA in it"
  [ ! -e "$out" ] || [ -f "$out/programs.tar.xz" ] || wrong "$out is no folder that pack made"
  local root=$here/..
  rm -rf "$out" && mkdir -p "$out/gpu_check" "$out/bench/pytorch"
  folder=$(mktemp -d)
  mkdir -p "$folder/bin" "$folder/lib" "$folder/tests/fixtures"
  for program in "${packed_programs[@]}"; do
    strip -o "$folder/bin/$program" "$bin/$program" || exit 1
  done
  needed_libraries "${packed_programs[@]/#/$bin/}" | while read -r library; do
    cp -L "$library" "$folder/lib/$(basename "$library")"
  done
  for data in ${fixtures//,/ }; do
    cp -r "$root/tests/fixtures/$data" "$folder/tests/fixtures/"
  done
  # The programs hold the same libraries: a window that spans them all finds that.
  tar -C "$folder" -cf - bin lib tests |
    xz -T1 --x86 --lzma2=preset=1,dict=128MiB >"$out/programs.tar.xz" || exit 1
  rm -rf "$folder"
  cp "$here/gpu_check.sh" "$out/"
  cp "$here"/gpu_check/*.sh "$out/gpu_check/"
  cp "$root"/bench/pytorch/*.py "$root/bench/pytorch/requirements.txt" "$out/bench/pytorch/"
  git -c safe.directory='*' -C "$root" rev-parse HEAD >"$out/COMMIT" 2>/dev/null ||
    echo unknown >"$out/COMMIT"
  local megabytes
  megabytes=$(du -sm --apparent-size "$out" | cut -f1)
  echo "gpu_check: $out, $megabytes MB, of commit $(cat "$out/COMMIT")"
  if [ "$megabytes" -ge "$most" ]; then
    echo "gpu_check: that is not under $most MB" >&2
    exit 1
  fi
}

unpack_programs() {
  # Not every machine has xz, and those with PyTorch have Python.
  { xz -dc "$here/programs.tar.xz" 2>/dev/null || "$python" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$here/programs.tar.xz"; } |
    tar -C "$work" -xf - || { echo "gpu_check: unpacking wants xz, or Python" >&2; exit 1; }
  bin=$work/bin fixtures=$work/tests/fixtures
  export own_libraries=$work/lib
  export HALFNOTE_TEST_SOURCES=$work OMP_WAIT_POLICY=passive
}
