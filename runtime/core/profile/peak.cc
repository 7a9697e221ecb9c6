#include "runtime/core/profile/peak.h"

#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <functional>
#include <limits>
#include <vector>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote {
namespace {

constexpr int64_t kSide = 1536;
constexpr int64_t kTriadElements = int64_t{8} << 20;  // 32 MiB an array: more than caches hold
constexpr int kTries = 12, kFewTries = 3;
constexpr double kPeakSeconds = 1.5;  // for more than a few tries

double best_seconds(const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity(), all = 0;
  for (int i = 0; i < kTries && (i < kFewTries || all < kPeakSeconds); ++i) {
    const Clock::time_point begin = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds);
    all += seconds;
  }
  return best;
}

double matmul_flops(DType dtype, int threads) {
  const Attributes none;
  const Operand matrix{dtype, {kSide, kSide}, {}, nullptr};
  KernelCall call;
  call.op = "MatMul";
  call.attributes = &none;
  call.inputs = {matrix, matrix};
  call.outputs = {matrix};
  call.threads = threads;
  const KernelChoice choice = cpu_kernels().choose(call);
  if (choice.kernel == nullptr) return 0;
  const Tensor a = Tensor::full(dtype, {kSide, kSide}, 0.5),
               b = Tensor::full(dtype, {kSide, kSide}, 0.25);
  Tensor y(dtype, {kSide, kSide});
  Tensor workspace(DType::kU8, {static_cast<int64_t>(choice.kernel->workspace_bytes()) + 1});
  const std::byte* inputs[] = {a.bytes(), b.bytes()};
  std::byte* outputs[] = {y.mutable_bytes()};
  const KernelBuffers buffers{inputs, outputs, workspace.mutable_bytes()};
  const double seconds = best_seconds([&] { choice.kernel->run(buffers); });
  return 2.0 * kSide * kSide * kSide / seconds;
}

double triad_bytes(int threads) {
  std::vector<float> a(kTriadElements), b(kTriadElements, 1.F), c(kTriadElements, 2.F);
  const double seconds = best_seconds([&] {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < kTriadElements; ++i) {
      a[static_cast<size_t>(i)] = b[static_cast<size_t>(i)] + 3.F * c[static_cast<size_t>(i)];
    }
  });
  return 3.0 * sizeof(float) * kTriadElements / seconds;
}

}  // namespace

MachinePeak measure_peak(int threads) {
  const int count = threads > 0 ? threads : omp_get_num_procs();
  return {count, matmul_flops(DType::kF32, count), matmul_flops(DType::kBF16, count),
          triad_bytes(count)};
}

std::string to_string(const MachinePeak& peak) {
  return fmt::format("f32 {:.0f}, bf16 {:.0f} GFLOP/s; memory {:.0f} GB/s ({} thread{})",
                     peak.f32_flops / 1e9, peak.bf16_flops / 1e9, peak.bytes / 1e9, peak.threads,
                     peak.threads == 1 ? "" : "s");
}

}  // namespace halfnote
