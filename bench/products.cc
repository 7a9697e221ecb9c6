// Multiply-adds a nanosecond of every kernel row that takes a MatMul: the figures of the kernel
// table in docs/developer.md and of the limits in kernels/cpu. The rows take turns, and the
// smallest processor time of some rounds counts, so that a busy machine does little harm. One
// thread, or THREADS of them: then the first figure of a row is for the sum of their processor
// times, the second for the time of the one that works longest.
//
//   cmake --build build/release --target halfnote-products
//   OMP_WAIT_POLICY=passive build/release/bin/halfnote-products [THREADS [TEXT]]
//
// With TEXT: the products whose line begins with it.
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/float16.h"
#include "kernels/kernel.h"

namespace {

using namespace halfnote;

constexpr int kRounds = 7;
constexpr double kLeastSeconds = 0.005;

struct Product {
  DType in, out;
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
};

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

constexpr Product kProducts[] = {
    // Small ones, about the limit of fast.matmul_f64_sums (25 million), and thin ones.
    {kF32, kF32, 128, 128, 128},
    {kF32, kF32, 256, 256, 256},
    {kF32, kF32, 128, 128, 784},
    {kF32, kF32, 512, 16, 512},
    {kF32, kF32, 512, 32, 512},
    {kF32, kF32, 8, 2048, 512},
    {kF32, kF32, 32, 1000, 2048, false, true},
    {kBF16, kBF16, 128, 128, 128},
    {kBF16, kBF16, 8, 2048, 512},
    {kBF16, kBF16, 32, 1000, 2048, false, true},
    // Linear layers of BERT-base: forward, gradients of the input and of the weight.
    {kF32, kF32, 1024, 768, 768, false, true},
    {kF32, kF32, 1024, 768, 768},
    {kF32, kF32, 768, 768, 1024, true, false},
    {kF32, kF32, 1024, 3072, 768, false, true},
    {kF32, kF32, 1024, 768, 3072},
    {kF32, kF32, 1024, 3072, 768},
    {kF32, kF32, 1024, 768, 3072, false, true},
    {kF32, kF32, 3072, 768, 1024, true, false},
    {kF32, kF32, 768, 3072, 1024, true, false},
    {kBF16, kBF16, 1024, 768, 768, false, true},
    {kBF16, kBF16, 1024, 768, 768},
    {kBF16, kF32, 768, 768, 1024, true, false},
    {kBF16, kBF16, 1024, 3072, 768, false, true},
    {kBF16, kBF16, 1024, 768, 3072},
    {kBF16, kBF16, 1024, 3072, 768},
    {kBF16, kBF16, 1024, 768, 3072, false, true},
    {kBF16, kF32, 3072, 768, 1024, true, false},
    {kBF16, kF32, 768, 3072, 1024, true, false},
    {kF16, kF16, 1024, 768, 768, false, true},
    {kF16, kF32, 768, 768, 1024, true, false},
    // Linear layers of GPT-2 with a batch of 2 × 256 tokens.
    {kF32, kF32, 512, 2304, 768},
    {kF32, kF32, 512, 768, 2304, false, true},
    {kF32, kF32, 768, 2304, 512, true, false},
    {kF32, kF32, 512, 768, 768},
    {kF32, kF32, 512, 3072, 768},
    {kF32, kF32, 512, 3072, 768, false, true},
    {kF32, kF32, 512, 768, 3072},
    {kF32, kF32, 512, 768, 3072, false, true},
    {kF32, kF32, 3072, 768, 512, true, false},
    {kF32, kF32, 768, 3072, 512, true, false},
    {kBF16, kBF16, 512, 2304, 768},
    {kBF16, kBF16, 512, 768, 2304, false, true},
    {kBF16, kF32, 768, 2304, 512, true, false},
    {kBF16, kBF16, 512, 768, 768},
    {kBF16, kBF16, 512, 3072, 768},
    {kBF16, kBF16, 512, 3072, 768, false, true},
    {kBF16, kBF16, 512, 768, 3072},
    {kBF16, kBF16, 512, 768, 3072, false, true},
    {kBF16, kF32, 3072, 768, 512, true, false},
    {kBF16, kF32, 768, 3072, 512, true, false},
    // The vocabularies of BERT and GPT-2.
    {kF32, kF32, 1024, 30522, 768, false, true},
    {kF32, kF32, 1024, 768, 30522},
    {kF32, kF32, 30522, 768, 1024, true, false},
    {kBF16, kBF16, 1024, 30522, 768, false, true},
    {kBF16, kBF16, 1024, 768, 30522},
    {kBF16, kF32, 30522, 768, 1024, true, false},
    {kF32, kF32, 512, 50257, 768, false, true},
    {kF32, kF32, 512, 768, 50257},
    {kF32, kF32, 50257, 768, 512, true, false},
    {kBF16, kBF16, 512, 50257, 768, false, true},
    {kBF16, kBF16, 512, 768, 50257},
    {kBF16, kF32, 50257, 768, 512, true, false},
};

struct FreeAligned {
  void operator()(std::byte* memory) const {
    ::operator delete (memory, std::align_val_t{size_t{2} << 20});
  }
};
using Memory = std::unique_ptr<std::byte, FreeAligned>;

/// In huge pages where they are to be had, as the arena of a run is; filled with small numbers.
Memory room(size_t bytes, DType type = DType::kU8) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t size = (std::max<size_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;
  Memory memory(static_cast<std::byte*>(::operator new (size, std::align_val_t{kHugePage})));
  madvise(memory.get(), size, MADV_HUGEPAGE);
  std::memset(memory.get(), 0, bytes);
  std::minstd_rand random(1);
  auto* words = reinterpret_cast<uint16_t*>(memory.get());
  auto* floats = reinterpret_cast<float*>(memory.get());
  for (size_t i = 0; type != DType::kU8 && i < bytes / size_of(type); ++i) {
    const float value = static_cast<float>(random() % 17) / 8 - 1;
    if (type == kF32) floats[i] = value;
    if (type == kF16) words[i] = to_f16(value).bits;
    if (type == kBF16) words[i] = to_bf16(value).bits;
  }
  return memory;
}

/// The processor time of each thread so far; they sleep while they wait (OMP_WAIT_POLICY=passive).
std::vector<double> seconds_of_threads(int threads) {
  std::vector<double> seconds(static_cast<size_t>(threads));
#pragma omp parallel num_threads(threads)
  {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    seconds[static_cast<size_t>(omp_get_thread_num())] =
        static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return seconds;
}

struct Candidate {
  const KernelRow* row;
  std::unique_ptr<Kernel> kernel;
  Memory workspace;
  double seconds = 1e9, longest = 1e9;  // of all threads, of the one that works longest
};

void time_once(Candidate& candidate, const KernelBuffers& buffers, int threads) {
  int64_t runs = 0;
  const std::vector<double> begin = seconds_of_threads(threads);
  double sum = 0, longest = 0;
  do {
    candidate.kernel->run(buffers);
    ++runs;
    const std::vector<double> end = seconds_of_threads(threads);
    sum = longest = 0;
    for (size_t i = 0; i < end.size(); ++i) {
      sum += end[i] - begin[i];
      longest = std::max(longest, end[i] - begin[i]);
    }
  } while (sum < kLeastSeconds);
  candidate.seconds = std::min(candidate.seconds, sum / static_cast<double>(runs));
  candidate.longest = std::min(candidate.longest, longest / static_cast<double>(runs));
}

std::string name_of(const Product& p) {
  return fmt::format("{:>4} -> {:<4} {:>5} x {:>5} x {:>5} {}{}", short_name(p.in),
                     short_name(p.out), p.m, p.n, p.k, p.trans_a ? 'T' : 'N',
                     p.trans_b ? 'T' : 'N');
}

void measure(const Product& p, int threads) {
  const Attributes attributes{{"transA", int64_t{p.trans_a}},
                              {"transB", int64_t{p.trans_b}},
                              {"out_dtype", static_cast<int64_t>(p.out)}};
  const Shape a = p.trans_a ? Shape{p.k, p.m} : Shape{p.m, p.k};
  const Shape b = p.trans_b ? Shape{p.n, p.k} : Shape{p.k, p.n};
  KernelCall call{
      .domain = "ai.halfnote", .op = "MatMul", .attributes = &attributes, .threads = threads};
  call.inputs = {{.dtype = p.in, .shape = a}, {.dtype = p.in, .shape = b}};
  call.outputs = {{.dtype = p.out, .shape = {p.m, p.n}}};
  std::vector<Candidate> candidates;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (row->name == "reference") continue;
    Prepared prepared = row->prepare(call);
    if (!prepared) continue;
    Memory workspace = room(prepared.kernel->workspace_bytes());
    candidates.push_back({row, std::move(prepared.kernel), std::move(workspace)});
  }
  const auto bytes = [](DType type, int64_t elements) {
    return static_cast<size_t>(elements) * size_of(type);
  };
  const Memory left = room(bytes(p.in, p.m * p.k), p.in),
               right = room(bytes(p.in, p.k * p.n), p.in);
  const Memory y = room(bytes(p.out, p.m * p.n));
  const std::byte* inputs[] = {left.get(), right.get()};
  std::byte* outputs[] = {y.get()};
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates)
      time_once(candidate, {inputs, outputs, candidate.workspace.get()}, threads);
  }
  fmt::print("{}", name_of(p));
  const double work = static_cast<double>(p.m * p.k * p.n) / 1e9;
  for (const Candidate& candidate : candidates) {
    fmt::print("  {} {:.1f}", candidate.row->name, work / candidate.seconds);
    if (threads > 1) fmt::print(" {:.1f}", work / candidate.longest);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::max(1, std::atoi(arguments[1])) : 1;
  const std::string_view text = count > 2 ? arguments[2] : "";
  fmt::print("operands -> result, m x n x k, N or T of either operand; multiply-adds/ns\n");
  for (const Product& product : kProducts) {
    if (name_of(product).starts_with(text)) measure(product, threads);
  }
  return 0;
}
