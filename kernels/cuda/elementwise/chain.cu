// Chains of elementwise ops (ai.halfnote.Pointwise): one generated kernel each. Here is how a call
// is launched; chain/plan.cc makes it a chain with arguments, chain/source.cc writes the text, and
// libraries/chains.h compiles it.
#include <algorithm>
#include <memory>

#include "kernels/cuda/elementwise/chain/plan.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/libraries/chains.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using chain::Access;
using chain::Arguments;
using chain::Plan;

class ChainRun final : public Kernel {
 public:
  explicit ChainRun(Plan plan) : plan_(std::move(plan)), kernel_(chain_kernel(plan_.chain)) {}

  void make_ready() const override { kernel_->make_ready(); }
  bool can_share(size_t input, size_t output) const override {
    const chain::Input& from = plan_.chain.inputs[input];
    return from.access == Access::kWhole &&
           size_of(from.dtype) == size_of(plan_.chain.outputs[output]);
  }
  void run(const KernelBuffers& buffers) const override {
    Arguments arguments = plan_.arguments;
    if (arguments.count == 0) return;
    for (size_t i = 0; i < plan_.chain.inputs.size(); ++i) arguments.in[i] = buffers.inputs[i];
    for (size_t k = 0; k < plan_.chain.outputs.size(); ++k) arguments.out[k] = buffers.outputs[k];
    const int width = chain::width(plan_.chain);
    arguments.groups = arguments.count / width;
    if (!libraries::illegal_launch(plan_.chain, arguments).empty()) arguments.groups = 0;
    const int64_t items = arguments.groups + (arguments.count - arguments.groups * width);
    const int64_t blocks = std::min<int64_t>(blocks_for(items, chain::kThreads), kMaxBlocks);
    kernel_->launch(stream_of(buffers), static_cast<unsigned>(blocks), arguments);
  }

 private:
  Plan plan_;
  std::shared_ptr<libraries::ChainKernel> kernel_;
};

Prepared prepare_chain(const KernelCall& call) {
  Plan plan;
  if (std::string why = chain::plan_chain(call, plan); !why.empty()) return Prepared::no(why);
  return Prepared::yes(std::make_unique<ChainRun>(std::move(plan)));
}

}  // namespace

std::vector<KernelRow> chain_rows() {
  return {{"ai.halfnote", "Pointwise", "generated.chain", prepare_chain}};
}

}  // namespace halfnote::HN_CUDA
