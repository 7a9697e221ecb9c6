// Chains of elementwise ops (ai.halfnote.Pointwise): one generated kernel each. Here is how a call
// is launched; chain/plan.cc makes it a chain with arguments, chain/source.cc writes the text, and
// libraries/chains.h compiles it.
#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/elementwise/chain/plan.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/libraries/chains.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using chain::Access;
using chain::Arguments;
using chain::Plan;

/// The sums of blocks of rows, or of pieces of each.
template <class T>
struct AddPartials : AddedParts {
  const double* partials;
  T* to;
  int64_t results;
  double divisor;
  __device__ double part(int64_t block, int64_t result) const {
    return partials[block * results + result];
  }
  __device__ void finish(int64_t result, double sum) const {
    to[result] = store_number<T>(static_cast<float>(sum / divisor));
  }
};

class ChainRun final : public Kernel {
 public:
  explicit ChainRun(Plan plan)
      : plan_(std::move(plan)),
        sum_(sum_of(plan_.chain.program)),
        kernel_(chain_kernel(plan_.chain)) {}

  size_t workspace_bytes() const override {
    return has_partials() ? static_cast<size_t>(plan_.arguments.blocks * results()) * sizeof(double)
                          : 0;
  }
  void make_ready() const override { kernel_->make_ready(); }
  bool can_share(size_t input, size_t output) const override {
    if (sum_ && sum_->output == output) return false;
    const chain::Input& from = plan_.chain.inputs[input];
    return from.access == Access::kWhole &&
           size_of(from.dtype) == size_of(plan_.chain.outputs[output]);
  }
  void run(const KernelBuffers& buffers) const override {
    Arguments arguments = plan_.arguments;
    arguments.partials = reinterpret_cast<double*>(buffers.workspace);
    if (arguments.count > 0) run_elements(buffers, arguments);
    if (has_partials() && results() > 0) add_partials(buffers, arguments);
  }

 private:
  /// Rows in one piece leave their sums themselves.
  bool has_partials() const { return sum_ && (!sum_->along_rows || plan_.arguments.blocks != 1); }
  int64_t results() const {
    return sum_->along_rows ? plan_.arguments.rows : plan_.arguments.columns;
  }

  void run_elements(const KernelBuffers& buffers, Arguments& arguments) const {
    for (size_t i = 0; i < plan_.chain.inputs.size(); ++i) arguments.in[i] = buffers.inputs[i];
    for (size_t k = 0; k < plan_.chain.outputs.size(); ++k) arguments.out[k] = buffers.outputs[k];
    const int width = chain::width(plan_.chain);
    arguments.groups = arguments.count / width;
    const bool whole_groups = !sum_ || sum_->along_rows || arguments.columns % width == 0;
    if (!whole_groups || !libraries::illegal_launch(plan_.chain, arguments).empty())
      arguments.groups = 0;
    const int64_t blocks = blocks_for(threads_of(arguments, width), chain::kThreads);
    kernel_->launch(stream_of(buffers), static_cast<unsigned>(std::min(blocks, kMaxBlocks)),
                    arguments);
  }

  /// How many threads have something to do.
  int64_t threads_of(const Arguments& a, int64_t width) const {
    if (!sum_) return a.groups + (a.count - a.groups * width);
    if (sum_->along_rows) return a.rows * a.blocks << a.row_bits;
    return a.columns / (a.groups > 0 ? width : 1) * a.blocks;
  }

  /// The end of each sum.
  void add_partials(const KernelBuffers& buffers, const Arguments& a) const {
    std::byte* to = buffers.outputs[sum_->output];
    Stream& stream = stream_of(buffers);
    const int64_t summed = sum_->along_rows ? a.columns : a.rows;
    const double divisor = sum_->is_mean ? static_cast<double>(summed) : 1;
    const auto add = [&]<class T>(T* sums) {
      merge_columns(stream, AddPartials<T>{{}, a.partials, sums, results(), divisor}, results(),
                    a.blocks);
    };
    switch (plan_.chain.outputs[sum_->output]) {
      case DType::kF16:
        return add(reinterpret_cast<Half*>(to));
      case DType::kBF16:
        return add(reinterpret_cast<BFloat16*>(to));
      default:
        return add(reinterpret_cast<float*>(to));
    }
  }

  Plan plan_;
  std::optional<PointwiseSum> sum_;
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
