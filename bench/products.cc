// Multiply-adds a nanosecond of every kernel row that takes a MatMul: the figures of the kernel
// table in docs/developer.md. One thread; the median of nine times, each over at least 20 ms.
//
//   cmake --build build/release --target halfnote-products && build/release/bin/halfnote-products
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <vector>

#include "kernels/kernel.h"

namespace {

using namespace halfnote;
using Clock = std::chrono::steady_clock;

constexpr int kTimes = 9;
constexpr double kLeastNanoseconds = 2e7;

struct Product {
  DType dtype;
  int64_t m, k, n;
};

// Small ones, about the limit of fast.matmul_f64_sums (25 million), and large ones.
constexpr Product kProducts[] = {
    {DType::kF32, 128, 128, 128},     {DType::kF32, 256, 256, 256},
    {DType::kF32, 128, 784, 128},     {DType::kF32, 512, 512, 512},
    {DType::kF32, 1024, 1024, 1024},  {DType::kBF16, 512, 512, 512},
    {DType::kBF16, 1024, 1024, 1024},
};

double nanoseconds(const Kernel& kernel, const KernelBuffers& buffers, int64_t repeats) {
  const Clock::time_point begin = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) kernel.run(buffers);
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

/// The median time of one run.
double time_of(const Kernel& kernel, const KernelBuffers& buffers) {
  int64_t repeats = 1;
  while (nanoseconds(kernel, buffers, repeats) < kLeastNanoseconds) repeats *= 2;
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    times.push_back(nanoseconds(kernel, buffers, repeats) / static_cast<double>(repeats));
  }
  std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
  return times[kTimes / 2];
}

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};

void measure(const Product& p, const KernelRow& row) {
  const auto operand = [&](Shape shape) { return Operand{.dtype = p.dtype, .shape = shape}; };
  const KernelCall call{.op = "MatMul",
                        .inputs = {operand({p.m, p.k}), operand({p.k, p.n})},
                        .outputs = {operand({p.m, p.n})}};
  const std::string title = fmt::format("{:<5} {:>5} x {:>4} x {:>4}  {:<24}", short_name(p.dtype),
                                        p.m, p.k, p.n, row.name);
  const Prepared prepared = row.prepare(call);
  if (!prepared) {
    fmt::print("{} {}\n", title, prepared.refusal);
    return;
  }
  const Tensor a(p.dtype, call.inputs[0].shape), b(p.dtype, call.inputs[1].shape);
  Tensor y(p.dtype, call.outputs[0].shape);
  const size_t workspace = prepared.kernel->workspace_bytes();
  const std::unique_ptr<std::byte, FreeAligned> memory(static_cast<std::byte*>(
      ::operator new (std::max<size_t>(workspace, 64), std::align_val_t{64})));
  const std::byte* inputs[] = {a.bytes(), b.bytes()};
  std::byte* outputs[] = {y.mutable_bytes()};
  const double time = time_of(*prepared.kernel, {inputs, outputs, memory.get()});
  fmt::print("{} {:>8.1f} multiply-adds/ns  {:>9.3f} ms\n", title,
             static_cast<double>(p.m * p.k * p.n) / time, time / 1e6);
}

}  // namespace

int main() {
  for (const Product& product : kProducts) {
    for (const KernelRow* row : cpu_kernels().rows_of("", "MatMul")) {
      if (row->name != "reference") measure(product, *row);
    }
  }
  return 0;
}
