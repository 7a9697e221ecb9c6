# The environment of the other scripts; sourced, not run, from the repository root. Sets `cache`,
# and puts the tools of scripts/setup.sh first in PATH: Debian's CMake is older than ONNX wants.
cache=${HALFNOTE_CACHE:-$PWD/.cache}
export PATH="$cache/venv/bin:$PATH"
export CCACHE_DIR="${CCACHE_DIR:-$cache/ccache}"
export CCACHE_SLOPPINESS=pch_defines,time_macros  # without it ccache passes by precompiled headers
# What two folders of build/ compile alike is compiled once.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CMAKE_COLOR_DIAGNOSTICS=OFF
python=$cache/venv/bin/python
# nproc gives the threads of OMP_NUM_THREADS where that is set; compilers take none of them.
jobs=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)

# build_preset PRESET [TARGET…]: configures and builds below build/PRESET.
build_preset() {
  local preset=$1
  shift
  cmake --preset "$preset" --log-level=WARNING >/dev/null
  cmake --build "build/$preset" -j"$jobs" ${1:+--target "$@"} -- --quiet
}
