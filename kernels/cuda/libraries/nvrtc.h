// NVRTC, which makes GPU code of a source text. It needs no driver and no GPU.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise/chain/source.h"

namespace halfnote::libraries {

/// What every kernel is compiled with, beside the GPU: no contraction, as on the CPU and by nvcc.
inline constexpr const char* kNvrtcOptions[] = {"--std=c++20", "--fmad=false",
                                                "--device-as-default-execution-space"};

class Nvrtc {
 public:
  /// Opens the library. Throws Error(kDevice) if it is not installed.
  Nvrtc();
  /// As in `13.0`.
  const std::string& version() const { return version_; }
  /// What to compile for a GPU of sm_<architecture>: `sm_90`, its own code, or, for one that is
  /// newer than the library, the newest PTX that it can write (`compute_121`). Throws
  /// Error(kDevice) for one that is too old for it.
  std::string target_for(int architecture) const;
  /// The code of the kernel: a cubin for `sm_…`, PTX for `compute_…`. Throws Error(kInternal) with
  /// the compiler's words if it is not accepted. May be called from several threads.
  std::string compile(const chain::Source& source, const std::string& target) const;

 private:
  struct Functions;
  const Functions& functions_;
  std::string version_;
};

/// Where compiled kernels are kept: $XDG_CACHE_HOME/halfnote/kernels, else
/// $HOME/.cache/halfnote/kernels; empty (nowhere) if neither says an absolute path.
std::filesystem::path kernel_folder();

struct CompiledKernels {
  std::vector<std::string> images;  // in the order of the sources
  size_t compiled = 0;              // those that the folder did not have
};

/// The code of all kernels for a GPU of sm_<architecture>: from the folder (none if it is empty),
/// or compiled on all cores at once and kept there. A file of the folder that is not whole, or not
/// ours, counts as missing; a folder that cannot be written costs the next run its compilation.
CompiledKernels compile_kernels(const Nvrtc& nvrtc, std::span<const chain::Source> sources,
                                int architecture, const std::filesystem::path& folder);

}  // namespace halfnote::libraries
