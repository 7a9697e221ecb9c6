// TopK on f32, f16 and bf16: each element of a line becomes one number of 64 bits, its place in the
// order above its index, and numbers are sorted. A few of many are kept in a heap, else they are
// counted into their places digit by digit.
#include <array>
#include <bit>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/along.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kShort = 96;  // lines whose elements are all compared with each other
constexpr int64_t kFew = 16;    // one in so many is picked: a heap

constexpr int kDigitBits = 8, kKeyBits = 32;
constexpr size_t kDigits = kKeyBits / kDigitBits, kValues = size_t{1} << kDigitBits;

size_t digit_of(uint64_t item, size_t digit) {
  return item >> (kKeyBits + digit * kDigitBits) & (kValues - 1);
}

/// NaN is above all numbers, the zeros are one number, and of equals the first comes first.
uint64_t item_of(float x, int64_t index, bool largest) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t size = bits & INT32_MAX;
  const uint32_t sign = uint32_t{1} << 31;
  const uint32_t ordered = size > 0x7f800000 ? UINT32_MAX : sign + (bits & sign ? 0 - size : size);
  return uint64_t{largest ? ~ordered : ordered} << kKeyBits | static_cast<uint64_t>(index);
}

/// Sorts n items that are in the order of their indices; the result is in either buffer.
const uint64_t* sort_by_digits(uint64_t* items, uint64_t* other, int64_t n) {
  std::array<std::array<uint32_t, kValues>, kDigits> counts{};
  for (int64_t i = 0; i < n; ++i) {
    for (size_t digit = 0; digit < kDigits; ++digit) ++counts[digit][digit_of(items[i], digit)];
  }
  for (size_t digit = 0; digit < kDigits; ++digit) {
    std::array<uint32_t, kValues>& places = counts[digit];
    if (places[digit_of(items[0], digit)] == static_cast<uint32_t>(n)) continue;
    uint32_t place = 0;
    for (uint32_t& count : places) place += std::exchange(count, place);
    for (int64_t i = 0; i < n; ++i) other[places[digit_of(items[i], digit)]++] = items[i];
    std::swap(items, other);
  }
  return items;
}

/// The place of each is the number of those before it.
const uint64_t* sort_by_rank(const uint64_t* items, uint64_t* other, int64_t n) {
  std::array<int32_t, kShort> keys;
  for (int64_t i = 0; i < n; ++i)
    keys[i] = static_cast<int32_t>(static_cast<uint32_t>(items[i] >> kKeyBits) ^ (1U << 31));
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = keys[i];
    int32_t rank = 0;
    for (int64_t j = 0; j < i; ++j) rank += keys[j] <= key;
    for (int64_t j = i + 1; j < n; ++j) rank += keys[j] < key;
    other[rank] = items[i];
  }
  return other;
}

/// The k first of n, in order.
const uint64_t* sort_first(uint64_t* items, uint64_t* other, int64_t n, int64_t k) {
  if (k <= n / kFew) {
    std::partial_sort(items, items + k, items + n);
    return items;
  }
  return n <= kShort ? sort_by_rank(items, other, n) : sort_by_digits(items, other, n);
}

template <class T>
Prepared kernel(const KernelCall& call, const TopKPlan& plan) {
  const bool with_indices = call.has_output(1);
  const int64_t n = plan.along.dim;
  const int64_t grain =
      std::max<int64_t>(1, (plan.along.lines() + call.threads - 1) / call.threads);
  const size_t room = aligned(static_cast<size_t>(n) * 2 * sizeof(uint64_t));
  const auto run = [=, threads = call.threads](const KernelBuffers& buffers) {
    const Along &along = plan.along, &picked = plan.picked;
    parallel_blocks(along.lines(), grain, threads, [&](int64_t begin, int64_t end) {
      auto* items = reinterpret_cast<uint64_t*>(buffers.workspace +
                                                static_cast<size_t>(begin / grain) * room);
      for (int64_t line = begin; line < end; ++line) {
        const T* x = buffers.in<T>(0) + along.start(line);
        for (int64_t i = 0; i < n; ++i)
          items[i] = item_of(load(x[i * along.inner]), i, plan.order.largest);
        const uint64_t* sorted = sort_first(items, items + n, n, picked.dim);
        const int64_t first = picked.start(line);
        for (int64_t i = 0; i < picked.dim; ++i) {
          const auto index = static_cast<int64_t>(sorted[i] & UINT32_MAX);
          const int64_t to = first + i * picked.inner;
          buffers.out<T>(0)[to] = x[index * along.inner];
          if (with_indices) buffers.out<int64_t>(1)[to] = index;
        }
      }
    });
  };
  return make_kernel(run, room * static_cast<size_t>(call.threads));
}

Prepared prepare(const KernelCall& call) {
  TopKPlan plan;
  if (std::string why = plan_top_k(call, plan); !why.empty()) return Prepared::no(why);
  if (plan.along.lines() * plan.picked.dim == 0) return Prepared::no("no elements");
  if (plan.along.dim > std::numeric_limits<int32_t>::max()) return Prepared::no("axis too long");
  return for_small_float(call.inputs[0].dtype, [&]<class T>() { return kernel<T>(call, plan); });
}

}  // namespace

std::vector<KernelRow> top_k_rows() {
  return {
      {"", "TopK", "fast.top_k", prepare},
  };
}

}  // namespace halfnote::cpu::fast
