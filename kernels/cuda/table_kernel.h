// Kernels that read a table of the step (Kernel::write_table()).
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

/// A kernel with a table: `run(buffers)`, `write(buffers, to)`.
template <class Run, class Write>
class TableKernel final : public Kernel {
 public:
  struct Sizes {
    size_t table = 0, workspace = 0;
  };
  TableKernel(Sizes sizes, Run run, Write write, std::function<bool(size_t, size_t)> share)
      : sizes_(sizes), run_(std::move(run)), write_(std::move(write)), share_(std::move(share)) {}
  void run(const KernelBuffers& buffers) const override { run_(buffers); }
  size_t workspace_bytes() const override { return sizes_.workspace; }
  size_t table_bytes() const override { return sizes_.table; }
  void write_table(const KernelBuffers& buffers, std::byte* to) const override {
    write_(buffers, to);
  }
  bool can_share(size_t input, size_t output) const override {
    return share_ && share_(input, output);
  }

 private:
  Sizes sizes_;
  Run run_;
  Write write_;
  std::function<bool(size_t, size_t)> share_;
};

template <class Run, class Write>
Prepared make_table_kernel(size_t table, size_t workspace, Run run, Write write,
                           std::function<bool(size_t, size_t)> share = {}) {
  return Prepared::yes(std::make_unique<TableKernel<Run, Write>>(
      typename TableKernel<Run, Write>::Sizes{table, workspace}, std::move(run), std::move(write),
      std::move(share)));
}

}  // namespace halfnote::HN_CUDA
