// Pad in its four modes and Trilu: an element of the result a thread. Around constants a thread
// writes 16 bytes of a line, where lines are a multiple of that.
#include "kernels/cpu/movement/pad.h"

#include "kernels/cpu/movement/trilu.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

/// A PadPlan as a kernel's argument.
struct PadWalk {
  static constexpr int kDims = 8;
  math::PadMode mode;
  int rank = 0;
  Divisor dims[kDims];  // of the result
  int64_t before[kDims] = {}, sizes[kDims] = {}, strides[kDims] = {};

  /// The element of the input that result `at` is; -1 if it is the value around it.
  __device__ int64_t source(int64_t at) const {
    int64_t offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t rest = dims[d].quotient(at);
      int64_t index = at - rest * dims[d].value() - before[d];
      if (mode != math::PadMode::kConstant) {
        index = math::pad_source(mode, index, sizes[d]);
      } else if (index < 0 || index >= sizes[d]) {
        return -1;
      }
      offset += index * strides[d];
      at = rest;
    }
    return offset;
  }

  /// Where the line of result `at` begins in the input, less what is before it; -1 if all of it is
  /// the value around. For constants. `index` is the place in the line.
  __device__ int64_t line(int64_t at, int64_t& index) const {
    const int64_t lines = dims[rank - 1].quotient(at);
    index = at - lines * dims[rank - 1].value() - before[rank - 1];
    int64_t offset = 0;
    at = lines;
    for (int d = rank - 2; d >= 0; --d) {
      const int64_t rest = dims[d].quotient(at);
      const int64_t here = at - rest * dims[d].value() - before[d];
      if (here < 0 || here >= sizes[d]) return -1;
      offset += here * strides[d];
      at = rest;
    }
    return offset;
  }
};

/// False if there are more dims than an argument holds. Neighbouring dims without pads are one.
bool as_walk(const cpu::PadPlan& plan, const Shape& in, const Shape& out, PadWalk& walk) {
  Shape sizes, results, before;
  bool was_plain = false;
  for (size_t d = 0; d < in.size(); ++d) {
    const bool plain = plan.before[d] == 0 && plan.after[d] == 0;
    if (plain && was_plain) {
      sizes.back() *= in[d];
      results.back() *= out[d];
    } else {
      sizes.push_back(in[d]);
      results.push_back(out[d]);
      before.push_back(plan.before[d]);
    }
    was_plain = plain;
  }
  if (sizes.size() > PadWalk::kDims) return false;
  walk.mode = plan.mode;
  walk.rank = static_cast<int>(sizes.size());
  const Shape strides = strides_of(sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    walk.dims[d] = Divisor(results[d]);
    walk.before[d] = before[d];
    walk.sizes[d] = sizes[d];
    walk.strides[d] = strides[d];
  }
  return true;
}

template <class T>
struct PadElement {
  const T* from;
  const T* value;  // null: zero
  T* to;
  PadWalk walk;
  __device__ void operator()(int64_t i) const {
    const int64_t source = walk.source(i);
    if (source >= 0) {
      to[i] = from[source];
    } else {
      to[i] = value == nullptr ? T{0} : *value;
    }
  }
};

/// V elements of a line of the result.
template <class T, int V>
struct PadPack {
  const T* from;
  const T* value;  // null: zero
  T* to;
  PadWalk walk;
  __device__ void operator()(int64_t i) const {
    int64_t index = 0;
    const int64_t line = walk.line(i * V, index);
    const int64_t size = line < 0 ? 0 : walk.sizes[walk.rank - 1];
    const T around = value == nullptr ? T{0} : *value;
    Packed<T, V> pack;
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      pack.of[v] = index + v >= 0 && index + v < size ? from[line + index + v] : around;
    }
    store_packed(to + i * V, pack);
  }
};

template <class T>
void run_pad(const KernelBuffers& buffers, const PadWalk& walk, int64_t count) {
  Stream& stream = stream_of(buffers);
  const T *from = buffers.in<T>(0), *value = buffers.in<T>(2);
  T* to = buffers.out<T>(0);
  constexpr int V = 16 / sizeof(T);
  const bool lines = walk.mode == math::PadMode::kConstant && walk.rank > 0 &&
                     walk.dims[walk.rank - 1].value() % V == 0;
  if (lines && are_aligned(std::array<const void*, 1>{to}))
    return for_each(stream, count / V, PadPack<T, V>{from, value, to, walk});
  for_each(stream, count, PadElement<T>{from, value, to, walk});
}

Prepared prepare_pad(const KernelCall& call) {
  cpu::PadPlan plan;
  if (std::string why = cpu::plan_pad(call, plan); !why.empty()) return Prepared::no(why);
  PadWalk walk;
  if (!as_walk(plan, call.inputs[0].shape, call.outputs[0].shape, walk)) {
    return Prepared::no(too_many_dims());
  }
  Prepared made = for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([walk, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      run_pad<T>(buffers, walk, count);
    });
  });
  return cpu::as_appending(call, plan, std::move(made));
}

template <class T>
struct TriluElement {
  const T* from;
  T* to;
  const int64_t* diagonal;  // null: 0
  cpu::TriluPlan plan;
  Divisor rows, columns;
  __device__ void operator()(int64_t i) const {
    const int64_t row = columns.quotient(i);
    const bool keep = plan.keeps(rows.remainder(row), i - row * columns.value(),
                                 diagonal == nullptr ? 0 : *diagonal);
    to[i] = keep ? from[i] : T{0};
  }
};

Prepared prepare_trilu(const KernelCall& call) {
  cpu::TriluPlan plan;
  if (std::string why = cpu::plan_trilu(call, plan); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [plan, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               TriluElement<T>{buffers.in<T>(0), buffers.out<T>(0), buffers.in<int64_t>(1), plan,
                               Divisor(plan.rows), Divisor(plan.columns)});
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

}  // namespace

std::vector<KernelRow> pad_rows() {
  return {
      {"", "Pad", "own.pad", prepare_pad},
      {"", "Trilu", "own.trilu", prepare_trilu},
  };
}

}  // namespace halfnote::HN_CUDA
