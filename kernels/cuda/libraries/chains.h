// Generated kernels, behind one narrow class: compiled by NVRTC on a GPU; under the emulation run
// by the host's loops, or, in tests, by the same text compiled into the test.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/cuda/elementwise/chain/arguments.h"
#include "kernels/cuda/elementwise/chain/source.h"
#include "kernels/device.h"

namespace halfnote::libraries {

class ChainKernel {
 public:
  virtual ~ChainKernel() = default;
  /// Compiles it, and with it, in parallel, all others that were asked for and are not ready yet.
  /// Throws Error(kDevice) if the library is missing.
  virtual void make_ready() = 0;
  /// Launches it over so many blocks of chain::kThreads. What is not ready is made ready first,
  /// which must not be while a graph is captured.
  virtual void launch(Stream& stream, unsigned blocks, const chain::Arguments& arguments) = 0;
};

/// Why a launch would go wrong: an address that is not aligned to its elements, or, where there are
/// groups, to their accesses; an empty text if it would not.
std::string illegal_launch(const chain::Chain& chain, const chain::Arguments& arguments);

}  // namespace halfnote::libraries

namespace halfnote::cuda {
/// One for equal texts.
std::shared_ptr<libraries::ChainKernel> chain_kernel(const chain::Chain& chain);
}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {
std::shared_ptr<libraries::ChainKernel> chain_kernel(const chain::Chain& chain);

/// A generated text that was compiled against the emulation.
struct CompiledChain {
  std::string_view name;
  void (*kernel)(chain::Arguments);
};
/// For tests: from now on these run where a chain has one of their names. The span must stay.
void use_compiled_chains(std::span<const CompiledChain> chains);
/// For tests: from now on each chain that is planned is added there; null: no longer.
void record_chains(std::vector<chain::Chain>* chains);
}  // namespace halfnote::cuda_emulated
