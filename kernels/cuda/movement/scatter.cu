// ScatterND with or without a sum: the gradient of an embedding. A thread owns a column of all rows
// and applies the updates in their order, so that no two threads write one element and every run
// adds in the same order. Sums of 16-bit elements are kept in f32 and rounded once.
#include "kernels/cuda/movement/scatter.h"

#include "kernels/cpu/movement/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kMaxWidth = 8;  // dims that an index names

struct ScatterShape {
  int64_t tuples = 0, inner = 1;
  int width = 0;
  int64_t dims[kMaxWidth] = {};
};

template <class T>
struct Widen {
  const T* from;
  Math<T>* to;
  __device__ void operator()(int64_t i) const { to[i] = load_number(from[i]); }
};

template <class T>
struct Round {
  const Math<T>* from;
  T* to;
  __device__ void operator()(int64_t i) const { to[i] = store_number<T>(from[i]); }
};

template <class T, bool kAdd>
struct ScatterColumn {
  IndexPointer indices;
  const T* updates;
  Math<T>* to;
  ScatterShape shape;
  DeviceFault* fault;
  __device__ void operator()(int64_t column) const {
    for (int64_t i = 0; i < shape.tuples; ++i) {
      int64_t at = 0;
      for (int d = 0; d < shape.width; ++d) {
        at = at * shape.dims[d] + indices.read(i * shape.width + d, shape.dims[d], fault);
      }
      const Math<T> value = load_number(updates[i * shape.inner + column]);
      Math<T>& place = to[at * shape.inner + column];
      place = kAdd ? place + value : value;
    }
  }
};

template <class T, bool kAdd>
Prepared scatter_kernel(const KernelCall& call, const ScatterShape& shape) {
  constexpr bool kWide = !std::is_same_v<T, Math<T>>;
  const int64_t count = call.outputs[0].size();
  const bool wide_index = call.inputs[1].dtype == DType::kI64;
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    T* to = buffers.out<T>(0);
    Math<T>* sums = nullptr;
    if constexpr (kWide) {
      sums = reinterpret_cast<Math<T>*>(buffers.workspace);
      for_each(stream, count, Widen<T>{buffers.in<T>(0), sums});
    } else {
      sums = to;
      if (to != buffers.in<T>(0)) {
        stream.copy(to, buffers.in<T>(0), static_cast<size_t>(count) * sizeof(T));
      }
    }
    for_each(stream, shape.inner,
             ScatterColumn<T, kAdd>{
                 {buffers.inputs[1], wide_index}, buffers.in<T>(2), sums, shape, stream.fault()});
    if constexpr (kWide) for_each(stream, count, Round<T>{sums, to});
  };
  const size_t workspace = kWide ? static_cast<size_t>(count) * sizeof(Math<T>) : 0;
  return make_kernel(body, workspace, [](size_t input, size_t) { return input == 0; });
}

}  // namespace

Prepared prepare_scatter_nd(const KernelCall& call) {
  if (std::string why = cpu::unfit_indices(call, 1); !why.empty()) return Prepared::no(why);
  if (!call.has_input(2) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const std::string reduction = attributes_of(call).get_string("reduction", "none");
  if (reduction != "none" && reduction != "add") return Prepared::no("reduction " + reduction);
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  if (indices.empty() || indices.back() > static_cast<int64_t>(data.size()) ||
      data != call.outputs[0].shape) {
    throw cpu::shape_error(call, "indices and data that do not fit", data, indices);
  }
  const DType type = call.outputs[0].dtype;
  if (call.inputs[0].dtype != type || call.inputs[2].dtype != type) {
    return Prepared::no("operands of different types");
  }
  if (indices.back() > kMaxWidth) return Prepared::no("an index of too many dims");
  ScatterShape shape;
  shape.width = static_cast<int>(indices.back());
  const auto width = static_cast<size_t>(shape.width);
  for (size_t d = 0; d < width; ++d) shape.dims[d] = data[d];
  shape.inner = element_count(std::span<const int64_t>(data).subspan(width));
  shape.tuples = element_count(std::span<const int64_t>(indices).first(indices.size() - 1));
  if (call.inputs[2].size() != shape.tuples * shape.inner) {
    throw cpu::shape_error(call, "wrong shape of the updates", Shape{shape.tuples, shape.inner},
                           call.inputs[2].shape);
  }
  if (shape.tuples > 0 && element_count(data) == 0) shape.tuples = 0;
  return for_float_type(type, [&]<class T>() {
    return reduction == "add" ? scatter_kernel<T, true>(call, shape)
                              : scatter_kernel<T, false>(call, shape);
  });
}

}  // namespace halfnote::HN_CUDA
