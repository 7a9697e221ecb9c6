// Reading by index: Gather, GatherElements, GatherND; and by length, ReverseSequence.
#include "kernels/cpu/movement/gather.h"

#include "kernels/cpu/movement/parts.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

template <class T>
struct GatherElement {
  const T* from;
  T* to;
  IndexPointer indices;
  FaultPlace fault;
  Divisor picks, inner;
  int64_t dim;
  __device__ void operator()(int64_t i) const {
    const int64_t row = inner.quotient(i), outer = picks.quotient(row);
    const int64_t index = indices.read(row - outer * picks.value(), dim, fault);
    to[i] = from[(outer * dim + index - row) * inner.value() + i];
  }
};

/// How a Gather walks: by lines of `inner` elements.
struct GatherSizes {
  int64_t count, picks, inner, dim;
};

template <class T>
void run_gather(const KernelBuffers& buffers, const GatherSizes& s, const IndexPointer& indices) {
  Stream& stream = stream_of(buffers);
  for_each(stream, s.count,
           GatherElement<T>{buffers.in<T>(0), buffers.out<T>(0), indices, stream.fault(),
                            Divisor(s.picks), Divisor(s.inner), s.dim});
}

Prepared prepare_gather(const KernelCall& call) {
  if (std::string reason = cpu::unfit_indices(call, 1); !reason.empty()) {
    return Prepared::no(reason);
  }
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Shape& data = call.inputs[0].shape;
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", 0), data.size()));
  const int64_t picks = call.inputs[1].size(), dim = data[axis];
  const int64_t inner = element_count(std::span<const int64_t>(data).subspan(axis + 1));
  const int64_t outer = element_count(std::span<const int64_t>(data).first(axis));
  const int64_t count = call.outputs[0].size();
  if (count != outer * picks * inner || call.inputs[0].dtype != call.outputs[0].dtype) {
    throw cpu::shape_error(call, "wrong output shape", Shape{outer, picks, inner},
                           call.outputs[0].shape);
  }
  if (dim == 0 && count > 0) return Prepared::no("indices into an empty dim");
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, wide = call.inputs[1].dtype == DType::kI64](const KernelBuffers& buffers) {
          constexpr int64_t kPack = sizeof(SixteenBytes) / sizeof(T);
          const IndexPointer indices{buffers.inputs[1], wide};
          const bool in_packs =
              inner % kPack == 0 && are_aligned<2>({buffers.inputs[0], buffers.outputs[0]});
          if (in_packs)
            return run_gather<SixteenBytes>(buffers, {count / kPack, picks, inner / kPack, dim},
                                            indices);
          run_gather<T>(buffers, {count, picks, inner, dim}, indices);
        });
  });
}

template <class T>
struct GatherElementsElement {
  const T* from;
  T* to;
  IndexPointer indices;
  FaultPlace fault;
  Strided<1> walk;
  int64_t dim, along;
  __device__ void operator()(int64_t i) const {
    int64_t offset[1];
    walk.offsets(i, offset);
    to[i] = from[offset[0] + indices.read(i, dim, fault) * along];
  }
};

Prepared prepare_gather_elements(const KernelCall& call) {
  cpu::GatherElementsPlan plan;
  if (std::string why = cpu::plan_gather_elements(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  Strided<1> walk;
  if (!as_strided(plan.runs, walk)) return Prepared::no(too_many_dims());
  if (plan.dim == 0 && walk.count > 0) return Prepared::no("indices into an empty dim");
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, dim = plan.dim, along = plan.along,
                        wide = call.inputs[1].dtype == DType::kI64](const KernelBuffers& buffers) {
      const IndexPointer indices{buffers.inputs[1], wide};
      for_each(stream_of(buffers), walk.count,
               GatherElementsElement<T>{buffers.in<T>(0), buffers.out<T>(0), indices,
                                        stream_of(buffers).fault(), walk, dim, along});
    });
  });
}

/// One element of the result a thread: a tuple of indices names `inner` elements.
template <class T>
struct GatherNdElement {
  const T* from;
  T* to;
  IndexPointer indices;
  FaultPlace fault;
  Divisor tuples, inner;
  int64_t batch;
  int width;
  int64_t dims[kMostIndices];
  __device__ void operator()(int64_t i) const {
    const int64_t tuple = inner.quotient(i);
    int64_t at = 0;
    for (int d = 0; d < width; ++d) {
      at = at * dims[d] + indices.read(tuple * width + d, dims[d], fault);
    }
    const int64_t column = i - tuple * inner.value();
    to[i] = from[tuples.quotient(tuple) * batch + at * inner.value() + column];
  }
};

Prepared prepare_gather_nd(const KernelCall& call) {
  cpu::GatherNdPlan plan;
  if (std::string why = cpu::plan_gather_nd(call, plan); !why.empty()) return Prepared::no(why);
  const int64_t count = call.outputs[0].size();
  if (plan.dims.size() > kMostIndices) {
    return Prepared::no("tuples of more than " + std::to_string(kMostIndices) + " indices");
  }
  if (plan.batch == 0 && count > 0) return Prepared::no("indices into an empty dim");
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, wide = call.inputs[1].dtype == DType::kI64](const KernelBuffers& buffers) {
          GatherNdElement<T> element{buffers.in<T>(0),
                                     buffers.out<T>(0),
                                     {buffers.inputs[1], wide},
                                     stream_of(buffers).fault(),
                                     Divisor(plan.tuples),
                                     Divisor(plan.inner),
                                     plan.batch,
                                     static_cast<int>(plan.dims.size())};
          std::copy(plan.dims.begin(), plan.dims.end(), element.dims);
          for_each(stream_of(buffers), count, element);
        });
  });
}

/// One element of the result a thread; a thread of a sequence notes a length out of range.
template <class T>
struct ReverseElement {
  const T* from;
  T* to;
  IndexPointer lengths;
  FaultPlace fault;
  cpu::ReversePlan plan;
  __device__ void operator()(int64_t i) const {
    const int64_t time = i / plan.time_stride % plan.steps;
    const int64_t length = lengths.raw(i / plan.batch_stride % plan.batches);
    if (length < 0 || length > plan.steps) {
      note_fault(fault, DeviceFault::kLength, length, plan.steps);
      to[i] = from[i];
      return;
    }
    to[i] = from[time < length ? i + (length - 1 - 2 * time) * plan.time_stride : i];
  }
};

Prepared prepare_reverse_sequence(const KernelCall& call) {
  cpu::ReversePlan plan;
  if (std::string why = cpu::plan_reverse_sequence(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([plan, count = call.outputs[0].size(),
                        wide = call.inputs[1].dtype == DType::kI64](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               ReverseElement<T>{buffers.in<T>(0),
                                 buffers.out<T>(0),
                                 {buffers.inputs[1], wide},
                                 stream_of(buffers).fault(),
                                 plan});
    });
  });
}

}  // namespace

std::vector<KernelRow> gather_rows() {
  return {
      {"", "Gather", "own.gather", prepare_gather},
      {"", "GatherElements", "own.gather", prepare_gather_elements},
      {"", "GatherND", "own.gather", prepare_gather_nd},
      {"", "ReverseSequence", "own.gather", prepare_reverse_sequence},
  };
}

}  // namespace halfnote::HN_CUDA
