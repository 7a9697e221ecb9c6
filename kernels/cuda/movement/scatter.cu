// ScatterND and ScatterElements, with or without a reduction: the gradients of Gather, of an
// embedding. The updates are sorted by where they go, and each run of equal places is merged in the
// order of the updates: no atomics, the same bits on every run. A thread merges a column of a chunk
// of updates; runs that go on behind their chunk are joined by a second kernel, those over many
// chunks by a third one, 32 threads a column. Sums of 16-bit elements are kept in f32 and rounded
// once.
#include "kernels/cuda/movement/parts.h"

#include "kernels/cpu/movement/scatter.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/movement/sort.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::ScatterReduction;

constexpr int64_t kChunk = 32;     // updates of a thread
constexpr int64_t kFewChunks = 8;  // behind the first, that a thread joins alone

/// Writes the place of every tuple of ScatterND, in rows of `inner` elements.
struct TupleKeys {
  IndexPointer indices;
  FaultPlace fault;
  int width = 0;
  int64_t dims[kMostIndices] = {};
  uint32_t* keys = nullptr;
  __device__ void operator()(int64_t i) const {
    int64_t at = 0;
    for (int d = 0; d < width; ++d) {
      at = at * dims[d] + indices.read(i * width + d, dims[d], fault);
    }
    keys[i] = static_cast<uint32_t>(at);
  }
};

/// … and of every element of ScatterElements.
struct ElementKeys {
  IndexPointer indices;
  FaultPlace fault;
  Strided<1> walk;  // the element at index 0 of the axis
  int64_t dim, along;
  uint32_t* keys;
  __device__ void operator()(int64_t i) const {
    int64_t offset[1];
    walk.offsets(i, offset);
    keys[i] = static_cast<uint32_t>(offset[0] + indices.read(i, dim, fault) * along);
  }
};

struct KeepLast {
  template <class T>
  __device__ static T value(T, T b) {
    return b;
  }
};

/// Elements of which the bits alone are moved.
template <class T>
struct Bits {
  using M = T;
  const T* data;
  static Bits of(const void* data, DType, Use) { return {static_cast<const T*>(data)}; }
  __device__ T operator[](int64_t at) const { return data[at]; }
  __device__ void write(void* to, int64_t place, T value) const {
    static_cast<T*>(to)[place] = value;
  }
};

/// The sorted updates, and where they go.
template <class X, class Reduction>
struct SortedUpdates {
  using M = typename X::M;
  SortedPositions order;
  int64_t count;
  Divisor inner;
  X data, updates;
  void* to;
  M *heads, *tails;  // of a chunk and column: runs that began before it, that go on behind it

  __device__ int64_t chunk_end(int64_t chunk) const {
    const int64_t end = (chunk + 1) * kChunk;
    return end < count ? end : count;
  }
  /// Is update i of another place than the one before?
  __device__ bool begins(int64_t i) const {
    return i == 0 || i == count || order.keys[i] != order.keys[i - 1];
  }
  /// Does a run begin in the chunk and go on behind it?
  __device__ bool goes_on(int64_t chunk) const {
    const int64_t first = chunk * kChunk, end = chunk_end(chunk);
    if (begins(end)) return false;
    return begins(first) || order.keys[first] != order.keys[end - 1];
  }
  /// Does the run that goes on behind the chunk reach into more than kFewChunks others?
  __device__ bool is_long(int64_t chunk) const {
    const int64_t far = (chunk + 1 + kFewChunks) * kChunk;
    return far < count && order.keys[far] == order.keys[far - kFewChunks * kChunk - 1];
  }
  /// The chunk, of kFewChunks from `first` on, in which a long run begins; -1 if there is none.
  __device__ int64_t long_run_from(int64_t first) const {
    for (int64_t chunk = first; chunk < first + kFewChunks && chunk * kChunk < count; ++chunk) {
      if (goes_on(chunk) && is_long(chunk)) return chunk;
    }
    return -1;
  }
  /// Chunks behind this one that begin with its last run.
  __device__ int64_t chunks_behind(int64_t chunk) const {
    const uint32_t key = order.keys[chunk_end(chunk) - 1];
    int64_t last = chunk + 1, end = (count + kChunk - 1) / kChunk;
    while (end - last > 1) {
      const int64_t middle = last + (end - last) / 2;
      (order.keys[middle * kChunk] == key ? last : end) = middle;
    }
    return last - chunk;
  }
  __device__ M update(int64_t i, int64_t column) const {
    return updates[order.positions[i] * inner.value() + column];
  }
  __device__ void finish(uint32_t key, int64_t column, M value) const {
    const int64_t at = key * inner.value() + column;
    data.write(to, at, Reduction::value(data[at], value));
  }
};

template <class X, class Reduction>
struct MergeChunk {
  SortedUpdates<X, Reduction> all;
  __device__ void operator()(int64_t position) const {
    const int64_t chunk = all.inner.quotient(position);
    const int64_t column = position - chunk * all.inner.value();
    const int64_t end = all.chunk_end(chunk);
    for (int64_t i = chunk * kChunk; i < end;) {
      const bool goes_on_from_before = !all.begins(i);
      const uint32_t key = all.order.keys[i];
      typename X::M value = all.update(i, column);
      for (++i; i < end && !all.begins(i); ++i) {
        value = Reduction::value(value, all.update(i, column));
      }
      if (goes_on_from_before) {
        all.heads[position] = value;
      } else if (!all.begins(i)) {
        all.tails[position] = value;
      } else {
        all.finish(key, column, value);
      }
    }
  }
};

/// The runs that begin in a chunk and go on behind it, but for long ones.
template <class X, class Reduction>
struct JoinChunks {
  SortedUpdates<X, Reduction> all;
  __device__ void operator()(int64_t position) const {
    int64_t chunk = all.inner.quotient(position);
    const int64_t column = position - chunk * all.inner.value();
    if (!all.goes_on(chunk) || all.is_long(chunk)) return;
    const uint32_t key = all.order.keys[all.chunk_end(chunk) - 1];
    typename X::M value = all.tails[position];
    do {
      ++chunk;
      value = Reduction::value(value, all.heads[chunk * all.inner.value() + column]);
    } while (all.order.keys[all.chunk_end(chunk) - 1] == key && !all.begins(all.chunk_end(chunk)));
    all.finish(key, column, value);
  }
};

/// The long runs, of which at most one begins in kFewChunks chunks: 32 threads a column, each with
/// chunks that follow each other, whose values are merged in their order.
template <class X, class Reduction>
__global__ void __launch_bounds__(kBlock)
    join_long_runs(const __grid_constant__ SortedUpdates<X, Reduction> all) {
  constexpr int kWidth = 8, kDepth = kBlock / kWidth;
  HN_SHARED(typename X::M[kBlock], merged);
  const int64_t chunk = all.long_run_from(int64_t{blockIdx.x} * kFewChunks);
  if (chunk < 0) return;
  const int row = static_cast<int>(threadIdx.x) / kWidth;
  const int64_t inner = all.inner.value(), count = all.chunks_behind(chunk);
  const int64_t each = (count + kDepth - 1) / kDepth, used = (count + each - 1) / each;
  const int64_t first = chunk + 1 + row * each;
  const int64_t behind = row * each + each < count ? first + each : chunk + 1 + count;
  for (int64_t group = int64_t{blockIdx.y} * kWidth; group < inner;
       group += int64_t{gridDim.y} * kWidth) {
    const int64_t column = group + threadIdx.x % kWidth;
    const bool has_part = column < inner && row < used;
    if (has_part) {
      typename X::M value = all.heads[first * inner + column];
      HN_UNROLL_BY_4
      for (int64_t c = first + 1; c < behind; ++c)
        value = Reduction::value(value, all.heads[c * inner + column]);
      merged[threadIdx.x] = value;
    }
    for (int distance = 1; distance < kDepth; distance *= 2) {
      __syncthreads();
      if (has_part && row % (2 * distance) == 0 && row + distance < used) {
        merged[threadIdx.x] =
            Reduction::value(merged[threadIdx.x], merged[threadIdx.x + distance * kWidth]);
      }
    }
    if (row == 0 && column < inner) {
      const typename X::M value =
          Reduction::value(all.tails[chunk * inner + column], merged[threadIdx.x]);
      all.finish(all.order.keys[all.chunk_end(chunk) - 1], column, value);
    }
    __syncthreads();  // `merged` is written anew
  }
}

/// How many updates of how many neighbours, into how many places.
struct ScatterSize {
  int64_t updates = 0, inner = 1, places = 0;
};

/// `write_keys(buffers, keys)` queues the kernel that writes the keys.
template <class X, class Reduction, class WriteKeys>
Prepared scatter_kernel(const KernelCall& call, const ScatterSize& size, WriteKeys write_keys) {
  const PositionSort sort(size.updates, {PositionSort::bits_below(size.places)});
  const int64_t chunks = (size.updates + kChunk - 1) / kChunk, parts = chunks * size.inner;
  const size_t sort_bytes = sort.workspace_bytes();
  const DType dtype = call.outputs[0].dtype;
  using M = typename X::M;
  constexpr bool kOrder =
      std::is_same_v<Reduction, math::Max> || std::is_same_v<Reduction, math::Min>;
  const auto body = [=, bytes = static_cast<size_t>(call.outputs[0].size()) *
                                size_of(dtype)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const std::byte* data = buffers.inputs[0];
    std::byte* to = buffers.outputs[0];
    if (to != data) stream.copy(to, data, bytes);
    if (parts == 0) return;
    const SortedPositions order = sort.sort(
        stream, buffers.workspace,
        [&](size_t, const uint32_t*, uint32_t* to_keys) { write_keys(buffers, to_keys); });
    auto* heads = reinterpret_cast<M*>(buffers.workspace + sort_bytes);
    constexpr Use kUse = kOrder ? Use::kOrder : Use::kSum;
    const SortedUpdates<X, Reduction> all{order,
                                          size.updates,
                                          Divisor(size.inner),
                                          X::of(to, dtype, kUse),
                                          X::of(buffers.inputs[2], dtype, kUse),
                                          to,
                                          heads,
                                          heads + parts};
    for_each(stream, parts, MergeChunk<X, Reduction>{all});
    for_each(stream, parts, JoinChunks<X, Reduction>{all});
    if (chunks <= kFewChunks + 1) return;
    const dim3 grid(blocks_for(chunks, kFewChunks),
                    static_cast<unsigned>(std::min<int64_t>((size.inner + 7) / 8, 65535)));
    launch(stream, join_long_runs<X, Reduction>, grid, kBlock, 0, all);
  };
  const size_t workspace = sort_bytes + static_cast<size_t>(2 * parts) * sizeof(M);
  return make_kernel(body, workspace, [](size_t input, size_t) { return input == 0; });
}

/// Calls `body.template operator()<X, Reduction>()`; without a reduction the bits alone are moved.
template <class Body>
Prepared for_reduction(DType type, ScatterReduction reduction, Body&& body) {
  if (reduction == ScatterReduction::kNone) {
    return for_element_size(
        type, [&]<class T>() { return body.template operator()<Bits<T>, KeepLast>(); });
  }
  if (type == DType::kBool) return Prepared::no("no reduction of bool");
  return for_elements(type, [&]<class X>() -> Prepared {
    switch (reduction) {
      case ScatterReduction::kMul:
        return body.template operator()<X, math::Mul>();
      case ScatterReduction::kMax:
        return body.template operator()<X, math::Max>();
      case ScatterReduction::kMin:
        return body.template operator()<X, math::Min>();
      default:
        return body.template operator()<X, math::Add>();
    }
  });
}

std::string too_large(const ScatterSize& size) {
  constexpr int64_t kLimit = int64_t{1} << 32;
  return size.updates < kLimit && size.places < kLimit ? "" : "2^32 places or updates, or more";
}

Prepared prepare_scatter_nd(const KernelCall& call) {
  cpu::ScatterNdPlan plan;
  if (std::string why = cpu::plan_scatter_nd(call, plan); !why.empty()) return Prepared::no(why);
  if (plan.dims.size() > kMostIndices) return Prepared::no("an index of too many dims");
  TupleKeys keys;
  keys.width = static_cast<int>(plan.dims.size());
  std::copy(plan.dims.begin(), plan.dims.end(), keys.dims);
  // Without places the updates are errors of the data, which the keys note.
  const ScatterSize size{plan.tuples, plan.inner, element_count(plan.dims)};
  if (std::string why = too_large(size); !why.empty()) return Prepared::no(why);
  if (size.places == 0 && size.updates > 0) return Prepared::no("indices into an empty dim");
  const bool wide = call.inputs[1].dtype == DType::kI64;
  const auto write = [=](const KernelBuffers& buffers, uint32_t* to) {
    TupleKeys own = keys;
    own.indices = {buffers.inputs[1], wide};
    own.fault = stream_of(buffers).fault();
    own.keys = to;
    for_each(stream_of(buffers), size.updates, own);
  };
  return for_reduction(call.outputs[0].dtype, plan.reduction, [&]<class X, class Reduction>() {
    return scatter_kernel<X, Reduction>(call, size, write);
  });
}

Prepared prepare_scatter_elements(const KernelCall& call) {
  cpu::ScatterElementsPlan plan;
  if (std::string why = cpu::plan_scatter_elements(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  Strided<1> walk;
  if (!as_strided(plan.runs, walk)) return Prepared::no(too_many_dims());
  const ScatterSize size{plan.runs.count, 1, call.outputs[0].size()};
  if (std::string why = too_large(size); !why.empty()) return Prepared::no(why);
  if (size.places == 0 && size.updates > 0) return Prepared::no("indices into an empty dim");
  const bool wide = call.inputs[1].dtype == DType::kI64;
  const auto write = [=, dim = plan.dim, along = plan.along](const KernelBuffers& buffers,
                                                             uint32_t* to) {
    for_each(
        stream_of(buffers), size.updates,
        ElementKeys{{buffers.inputs[1], wide}, stream_of(buffers).fault(), walk, dim, along, to});
  };
  return for_reduction(call.outputs[0].dtype, plan.reduction, [&]<class X, class Reduction>() {
    return scatter_kernel<X, Reduction>(call, size, write);
  });
}

}  // namespace

std::vector<KernelRow> scatter_rows() {
  return {
      {"", "ScatterElements", "own.scatter", prepare_scatter_elements},
      {"", "ScatterND", "own.scatter", prepare_scatter_nd},
  };
}

}  // namespace halfnote::HN_CUDA
