// ArgMax and ArgMin, on f32, f16 and bf16: rows where the axis is the last one, else lines of
// adjacent results.
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/along.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kColumns = 512;    // of a line
constexpr int64_t kElements = 4096;  // of a few rows

/// Lines of all elements along the axis, taken in turn.
template <class T>
void line(const T* x, const Along& along, int64_t columns, const ArgOrder& order, int64_t* y) {
  std::array<float, kColumns> room;
  std::array<int32_t, kColumns> best, which{};
  best.fill(INT32_MIN);
  for (int64_t i = 0; i < along.dim; ++i) {
    const float* at = load_block(x + i * along.inner, columns, room.data());
    reduce_loops().take_better(at, columns, static_cast<int32_t>(i), order, best.data(),
                               which.data());
  }
  for (int64_t i = 0; i < columns; ++i) y[i] = which[static_cast<size_t>(i)];
}

template <class T>
Prepared lines_kernel(const KernelCall& call, const Along& along, const ArgOrder& order) {
  const int64_t blocks = (along.inner + kColumns - 1) / kColumns;
  return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(along.outer * blocks, 1, threads, [&](int64_t unit, int64_t) {
      const int64_t outer = unit / blocks, column = unit % blocks * kColumns;
      const int64_t columns = std::min(kColumns, along.inner - column);
      line(buffers.in<T>(0) + outer * along.dim * along.inner + column, along, columns, order,
           buffers.out<int64_t>(0) + outer * along.inner + column);
    });
  });
}

template <class T>
Prepared rows_kernel(const KernelCall& call, const Along& along, const ArgOrder& order) {
  const int64_t together = std::max<int64_t>(1, kElements / along.dim);
  const int64_t blocks = (along.outer + together - 1) / together;
  const int64_t grain = std::max<int64_t>(1, (blocks + call.threads - 1) / call.threads);
  const size_t room = std::is_same_v<T, float>
                          ? 0
                          : aligned(static_cast<size_t>(together * along.dim) * sizeof(float));
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(blocks, grain, threads, [&](int64_t begin, int64_t end) {
      auto* own =
          reinterpret_cast<float*>(buffers.workspace + static_cast<size_t>(begin / grain) * room);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * together, count = std::min(together, along.outer - first);
        const float* x = load_block(buffers.in<T>(0) + first * along.dim, count * along.dim, own);
        reduce_loops().best_places(x, count, along.dim, order, buffers.out<int64_t>(0) + first);
      }
    });
  };
  return make_kernel(body, room * static_cast<size_t>(call.threads));
}

template <bool kLargest>
Prepared prepare(const KernelCall& call) {
  ArgPlan plan;
  if (std::string why = plan_arg(call, kLargest, plan); !why.empty()) return Prepared::no(why);
  const Along& along = plan.along;
  if (along.lines() == 0) return Prepared::no("no elements");
  if (along.dim > std::numeric_limits<int32_t>::max()) return Prepared::no("axis too long");
  if (along.inner == 1 && along.dim < 8) return Prepared::no("short rows");
  const ArgOrder order{!kLargest, plan.order.last_index};
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return along.inner == 1 ? rows_kernel<T>(call, along, order)
                            : lines_kernel<T>(call, along, order);
  });
}

}  // namespace

std::vector<KernelRow> arg_rows() {
  return {
      {"", "ArgMax", "fast.arg", prepare<true>},
      {"", "ArgMin", "fast.arg", prepare<false>},
  };
}

}  // namespace halfnote::cpu::fast
