// GatherElements and ScatterElements along the first axis, where the indices of a row are mostly
// one and the same: graph networks (PyTorch's gather and scatter_add) expand the number of a node
// to the width of its features. Such rows are moved whole; others element by element. And ScatterND
// that adds rows. Bits and order are those of the reference (movement/gather.h, scatter.h).
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/movement/gather.h"
#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/movement/scatter.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kNarrow = 8;     // below, a row is no less work than its elements
constexpr int64_t kColumns = 256;  // of a thread that adds: it goes through all rows

/// Rows of `width` elements that indices of as many columns name.
struct IndexedRows {
  int64_t rows = 0, width = 0, dim = 0;
  bool wide = false;  // indices of i64
  int threads = 1;
};

template <class I>
bool all_equal(const I* indices, int64_t count) {
  I differs = 0;
  for (int64_t i = 1; i < count; ++i) differs |= indices[i] ^ indices[0];
  return differs == 0;
}

/// Some rows, and some columns of them.
struct Part {
  int64_t row = 0, rows_end = 0, column = 0, columns_end = 0;
};

/// Calls `move(row, column, count, place)` for runs of columns that one index names.
template <class I, class Move>
void for_runs(const IndexedRows& r, const IndexReader& reader, const KernelBuffers& buffers,
              const Part& part, const Move& move) {
  const I* indices = buffers.in<I>(1);
  const int64_t begin = part.column, end = part.columns_end;
  for (int64_t row = part.row; row < part.rows_end; ++row) {
    const int64_t at = row * r.width;
    if (all_equal(indices + at + begin, end - begin)) {
      move(row, begin, end - begin, reader.read(buffers, at + begin, r.dim));
      continue;
    }
    for (int64_t i = begin; i < end; ++i) move(row, i, 1, reader.read(buffers, at + i, r.dim));
  }
}

template <class Move>
void for_part(const IndexedRows& r, const IndexReader& reader, const KernelBuffers& buffers,
              const Part& part, const Move& move) {
  if (r.wide) return for_runs<int64_t>(r, reader, buffers, part, move);
  for_runs<int32_t>(r, reader, buffers, part, move);
}

/// Along the first axis, over whole rows of the data; else the reason.
std::string plan_rows(const KernelCall& call, IndexedRows& r) {
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  const auto rank = static_cast<int64_t>(data.size());
  if (rank < 2 || normalize_axis(attributes_of(call).get_int("axis", 0), rank) != 0)
    return "not along the first axis of several";
  if (!std::equal(data.begin() + 1, data.end(), indices.begin() + 1)) return "parts of rows";
  r.rows = indices[0];
  r.dim = data[0];
  r.width = element_count(std::span<const int64_t>(data).subspan(1));
  r.wide = call.inputs[1].dtype == DType::kI64;
  r.threads = call.threads;
  return r.width < kNarrow ? "narrow rows" : "";
}

template <class T>
void add_row(const T* __restrict from, int64_t count, T* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

Prepared prepare_gather_elements(const KernelCall& call) {
  GatherElementsPlan plan;
  if (std::string why = plan_gather_elements(call, plan); !why.empty()) return Prepared::no(why);
  IndexedRows r;
  if (std::string why = plan_rows(call, r); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([r, reader = IndexReader(call, 1)](const KernelBuffers& buffers) {
      const T* data = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      const int64_t grain = std::max<int64_t>(1, kElementGrain / r.width);
      parallel_blocks(r.rows, grain, r.threads, [&](int64_t begin, int64_t end) {
        for_part(r, reader, buffers, {begin, end, 0, r.width},
                 [&](int64_t row, int64_t column, int64_t count, int64_t place) {
                   std::copy_n(data + place * r.width + column, count, y + row * r.width + column);
                 });
      });
    });
  });
}

/// Only sums: they alone take their time in models.
std::string unfit_sum(const KernelCall& call, ScatterReduction reduction) {
  if (reduction != ScatterReduction::kAdd) return "no sum";
  return call.outputs[0].dtype == DType::kF32 ? "" : "no f32";
}

/// The data into the result, if they are not one.
void copy_data(const KernelBuffers& buffers, int64_t count, int threads) {
  const auto* from = buffers.in<float>(0);
  auto* to = buffers.out<float>(0);
  if (from == to) return;
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    std::copy(from + begin, from + end, to + begin);
  });
}

bool over_the_data(size_t input, size_t) { return input == 0; }

Prepared prepare_scatter_elements(const KernelCall& call) {
  ScatterElementsPlan plan;
  if (std::string why = plan_scatter_elements(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = unfit_sum(call, plan.reduction); !why.empty()) return Prepared::no(why);
  IndexedRows r;
  if (std::string why = plan_rows(call, r); !why.empty()) return Prepared::no(why);
  const int64_t count = call.outputs[0].size();
  const auto body = [=, reader = IndexReader(call, 1)](const KernelBuffers& buffers) {
    copy_data(buffers, count, r.threads);
    const auto* updates = buffers.in<float>(2);
    auto* y = buffers.out<float>(0);
    parallel_blocks(r.width, kColumns, r.threads, [&](int64_t begin, int64_t end) {
      for_part(r, reader, buffers, {0, r.rows, begin, end},
               [&](int64_t row, int64_t column, int64_t some, int64_t place) {
                 add_row(updates + row * r.width + column, some, y + place * r.width + column);
               });
    });
  };
  return make_kernel(body, 0, over_the_data);
}

Prepared prepare_scatter_nd(const KernelCall& call) {
  ScatterNdPlan plan;
  if (std::string why = plan_scatter_nd(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = unfit_sum(call, plan.reduction); !why.empty()) return Prepared::no(why);
  if (plan.inner < kNarrow) return Prepared::no("narrow rows");
  if (plan.dims.size() != 1) return Prepared::no("indices of several numbers");
  const int64_t count = call.outputs[0].size();
  const auto body = [=, threads = call.threads,
                     reader = IndexReader(call, 1)](const KernelBuffers& buffers) {
    copy_data(buffers, count, threads);
    const auto* updates = buffers.in<float>(2);
    auto* y = buffers.out<float>(0);
    parallel_blocks(plan.inner, kColumns, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < plan.tuples; ++i) {
        const int64_t place = reader.read(buffers, i, plan.dims[0]);
        add_row(updates + i * plan.inner + begin, end - begin, y + place * plan.inner + begin);
      }
    });
  };
  return make_kernel(body, 0, over_the_data);
}

}  // namespace

std::vector<KernelRow> indexed_rows() {
  constexpr std::string_view kName = "fast.indexed_rows";
  return {
      {"", "GatherElements", kName, prepare_gather_elements},
      {"", "ScatterElements", kName, prepare_scatter_elements},
      {"", "ScatterND", kName, prepare_scatter_nd},
  };
}

}  // namespace halfnote::cpu::fast
