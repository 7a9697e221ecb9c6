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

own_git() { git --no-optional-locks -c safe.directory='*' -C "$here/.." "$@"; }

# sources_of PROGRAM: the folders and files that it is built from.
sources_of() {
  local libraries="base compiler kernels passes runtime"
  case "$1" in
    halfnote) echo "$libraries cli" ;;
    halfnote-cases) echo "$libraries" tests/cases/{main,case,case_run,beside_cpu}.{cc,h} ;;
    halfnote-step) echo "$libraries tests/cases/step_states.cc" ;;
    halfnote-steps) echo "$libraries bench/steps.cc bench/rates.h" ;;
    halfnote_cuda_test) echo "$libraries tests/cuda" ;;
    halfnote_kernels_test)
      echo "base kernels tests/kernels" tests/cuda/harness/{device_check,reserve}.{cc,h}
      ;;
  esac
}

# stale_program BIN: the first program that a tracked source is newer than, and that source.
stale_program() {
  local bin program sources newer
  bin=$(cd "$1" && pwd)
  for program in "${packed_programs[@]}"; do
    read -ra sources <<<"$(sources_of "$program")"
    newer=$(cd "$here/.." && own_git ls-files -z -- "${sources[@]}" 2>/dev/null |
      grep -zE '\.(cc|cu|h|inc)$' | than=$bin/$program xargs -0 -r sh -c \
      'find "$@" -maxdepth 0 -newer "$than" 2>/dev/null' find | head -n 1)
    [ -z "$newer" ] || { echo "$program is older than $newer"; return; }
  done
}

# write_commit BIN OUT STALE: what the folder is called by: HASH, and what else is to be known.
write_commit() {
  local commit
  commit=$(own_git rev-parse HEAD 2>/dev/null) || commit=unknown
  [ -z "$3" ] || commit+=-stale
  [ -z "$(own_git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit+=-dirty
  if grep -qsE '^CMAKE_CUDA_FLAGS:[A-Z]+=.*-O1' "$1/../CMakeCache.txt"; then
    commit+=-check
    echo "gpu_check: the kernels of $1 are compiled with -O1: their times say nothing"
  fi
  echo "$commit" >"$2/COMMIT"
}

pack_command() {
  local bin=build/cuda/bin out=build/gpu_check most=60 fixtures=$packed_fixtures
  local program data pieces=0 may_be_stale=no stale
  while [ $# -gt 0 ]; do
    case "$1" in
      --bin) bin=$(value "$@") || exit 2; shift ;;
      --out) out=$(value "$@") || exit 2; shift ;;
      --fixtures) fixtures=$(value "$@") || exit 2; shift ;;
      --most) most=$(value "$@") || exit 2; shift ;;
      --pieces) pieces=$(value "$@") || exit 2; shift ;;
      --stale) may_be_stale=yes ;;
      *) wrong "unknown option '$1'" ;;
    esac
    shift
  done
  [[ "$pieces" =~ ^(0|[1-9][0-9]*)$ ]] || wrong "--pieces wants a number, got '$pieces'"
  [ "$fixtures" != none ] || fixtures=
  for data in ${fixtures//,/ }; do
    [[ ",$packed_fixtures," == *",$data,"* ]] || wrong "no fixtures are named '$data'"
  done
  for program in "${packed_programs[@]}"; do
    [ -x "$bin/$program" ] ||
      wrong "$bin/$program is not there: build with -DHALFNOTE_CUDA=ON (preset cuda)"
  done
  grep -qF libcuda.so.1 "$bin/halfnote" || wrong "$bin/halfnote has no CUDA in it"
  [ ! -e "$out" ] || are_programs_in "$out" || wrong "$out is no folder that pack made"
  stale=$(stale_program "$bin")
  [ -z "$stale" ] || [ "$may_be_stale" = yes ] ||
    wrong "$bin/$stale: build it, or say --stale"
  rm -rf "$out" && mkdir -p "$out/gpu_check" "$out/bench/pytorch"
  pack_programs "$bin" "$fixtures" "$out/programs.tar.xz"
  [ "$pieces" = 0 ] || cut_programs "$out" "$pieces"
  cp "$here/gpu_check.sh" "$out/"
  cp "$here"/gpu_check/*.sh "$out/gpu_check/"
  cp "$here"/../bench/pytorch/{*.py,requirements.txt} "$out/bench/pytorch/"
  write_commit "$bin" "$out" "$stale"
  local megabytes
  megabytes=$(du -sm --apparent-size "$out" | cut -f1)
  echo "gpu_check: $out, $megabytes MB, of commit $(cat "$out/COMMIT")"
  if [ "$megabytes" -ge "$most" ]; then
    echo "gpu_check: that is not under $most MB" >&2
    exit 1
  fi
}

# pack_programs BIN FIXTURES FILE: programs, libraries and fixtures as one archive.
pack_programs() {
  local bin=$1 program library data folder
  folder=$(mktemp -d)
  mkdir -p "$folder/bin" "$folder/lib" "$folder/tests/fixtures"
  for program in "${packed_programs[@]}"; do
    strip -o "$folder/bin/$program" "$bin/$program" || exit 1
  done
  needed_libraries "${packed_programs[@]/#/$bin/}" | while read -r library; do
    cp -L "$library" "$folder/lib/$(basename "$library")"
  done
  for data in ${2//,/ }; do
    cp -r "$here/../tests/fixtures/$data" "$folder/tests/fixtures/"
  done
  # The programs hold the same libraries: a window that spans them all finds that.
  tar -C "$folder" -cf - bin lib tests |
    xz -T1 --x86 --lzma2=preset=1,dict=128MiB >"$3" || exit 1
  rm -rf "$folder"
}

# cut_programs FOLDER MB: PIECES says how many there are.
cut_programs() {
  local whole=$1/programs.tar.xz pieces
  split -b "${2}M" -d -a 2 "$whole" "$whole." || exit 1
  rm "$whole"
  pieces=("$whole".[0-9]*)
  echo ${#pieces[@]} >"$1/PIECES"
  echo "gpu_check: programs.tar.xz is ${#pieces[@]} pieces; run wants them all in one folder"
}

are_programs_in() { [ -f "$1/programs.tar.xz" ] || [ -f "$1/PIECES" ]; }

# program_files: those that are programs.tar.xz, in their order.
program_files() {
  local i piece
  [ -f "$here/PIECES" ] || { echo "$here/programs.tar.xz"; return; }
  [ ! -f "$here/programs.tar.xz" ] || wrong "programs.tar.xz and its pieces: of two packs in $here"
  for ((i = 0; i < $(cat "$here/PIECES"); ++i)); do
    piece=$here/programs.tar.xz.$(printf '%02d' "$i")
    [ -f "$piece" ] || wrong "$piece is not there: copy all pieces that pack made"
    echo "$piece"
  done
}

unpack_programs() {
  local files unpack=(xz -dc)
  files=$(program_files) || exit 2
  # Not every machine has xz, and those with PyTorch have Python.
  command -v xz >/dev/null 2>&1 || unpack=("$python" -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer)')
  tr '\n' '\0' <<<"$files" | xargs -0 cat | "${unpack[@]}" | tar -C "$work" -xf - ||
    { echo "gpu_check: unpacking wants xz, or Python, and all of what pack made" >&2; exit 1; }
  bin=$work/bin fixtures=${sources:=$work}/tests/fixtures
  [ -n "$(ls -A "$fixtures" 2>/dev/null)" ] ||
    wrong "no fixtures in $sources: pack left them out, --sources names a checkout that has them"
  export own_libraries=$work/lib
  export HALFNOTE_TEST_SOURCES=$sources OMP_WAIT_POLICY=passive
}
