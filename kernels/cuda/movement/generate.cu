// Ops whose elements come from shapes, attributes or scalars: ConstantOfShape, EyeLike, OneHot,
// Range, an element of the result a thread; and what is known before the first step (Constant,
// NonZero, Shape, Size), which lies in the step's table.
#include <cstring>

#include "kernels/cpu/movement/fill.h"
#include "kernels/cpu/movement/known.h"
#include "kernels/cpu/movement/one_hot.h"
#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/cuda/table_kernel.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

bool is_number(DType dtype) { return is_whole(dtype) || cpu::is_real(dtype); }

std::string no_number(DType dtype) {
  return "no kernel for elements of type " + std::string(short_name(dtype));
}

template <class T>
struct FillElement {
  T value;
  T* to;
  __device__ void operator()(int64_t i) const { to[i] = value; }
};

Prepared prepare_fill(const KernelCall& call) {
  Tensor value;
  if (std::string why = cpu::plan_fill(call, value); !why.empty()) return Prepared::no(why);
  return for_element_size(value.dtype(), [&]<class T>() {
    T element;
    std::memcpy(&element, value.bytes(), sizeof(T));
    return make_kernel([element, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count, FillElement<T>{element, buffers.out<T>(0)});
    });
  });
}

template <std::string (*kPlan)(const KernelCall&, Tensor&)>
Prepared prepare_known(const KernelCall& call) {
  Tensor value;
  if (std::string why = kPlan(call, value); !why.empty()) return Prepared::no(why);
  const auto run = [bytes = value.byte_size()](const KernelBuffers& buffers) {
    if (bytes != 0) stream_of(buffers).copy(buffers.outputs[0], buffers.table, bytes);
  };
  const auto write = [value](const KernelBuffers&, std::byte* to) {
    if (value.byte_size() != 0) std::memcpy(to, value.bytes(), value.byte_size());
  };
  return make_table_kernel(value.byte_size(), 0, run, write);
}

struct EyeElement {
  AnyOutput y;
  Divisor columns;
  int64_t diagonal;
  __device__ void operator()(int64_t i) const {
    const int64_t row = columns.quotient(i);
    y.write(i, int64_t{i - row * columns.value() - row == diagonal});
  }
};

Prepared prepare_eye_like(const KernelCall& call) {
  const Shape& shape = call.outputs[0].shape;
  if (shape.size() != 2) throw cpu::shape_error(call, "needs two dims", Shape{0, 0}, shape);
  const DType dtype = call.outputs[0].dtype;
  if (!is_number(dtype) && dtype != DType::kBool) return Prepared::no(no_number(dtype));
  return make_kernel(
      [=, columns = shape[1], count = call.outputs[0].size(),
       diagonal = attributes_of(call).get_int("k", 0)](const KernelBuffers& buffers) {
        for_each(stream_of(buffers), count,
                 EyeElement{{buffers.outputs[0], dtype}, Divisor(columns), diagonal});
      });
}

/// On where the index, of any numeric type, says so: what is out of range is nowhere.
template <class T>
struct OneHotElement {
  AnyPointer indices;
  bool whole;
  const T* values;  // off, on
  T* to;
  Divisor depth, inner;
  __device__ void operator()(int64_t i) const {
    const int64_t row = inner.quotient(i), outer = depth.quotient(row);
    const int64_t at = i - (row - outer) * inner.value();
    int64_t index = whole ? load_whole<int64_t>(indices.data, indices.dtype, at)
                          : math::truncate_saturating<int64_t>(indices.load<double>(at));
    if (index < 0) index += depth.value();
    to[i] = values[index == row - outer * depth.value() ? 1 : 0];
  }
};

Prepared prepare_one_hot(const KernelCall& call) {
  cpu::OneHotPlan plan;
  if (std::string why = cpu::plan_one_hot(call, plan); !why.empty()) return Prepared::no(why);
  const DType indices = call.inputs[0].dtype;
  const bool whole = is_whole(indices) || indices == DType::kBool;
  if (!whole && !cpu::is_real(indices)) return Prepared::no(no_number(indices));
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               OneHotElement<T>{{buffers.inputs[0], indices},
                                whole,
                                buffers.in<T>(2),
                                buffers.out<T>(0),
                                Divisor(plan.depth),
                                Divisor(plan.inner)});
    });
  });
}

/// start + i·delta, each rounded once.
template <class C>
struct RangeElement {
  NumberPointer<C> start, delta;
  NumberOutput<C> y;
  __device__ void operator()(int64_t i) const {
    y.write(i, math::Add::value(start[0], math::Mul::value(static_cast<C>(i), delta[0])));
  }
};

template <class C>
Prepared range_kernel(const KernelCall& call) {
  return make_kernel([dtype = call.outputs[0].dtype,
                      count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(
        stream_of(buffers), count,
        RangeElement<C>{
            {buffers.inputs[0], dtype}, {buffers.inputs[2], dtype}, {buffers.outputs[0], dtype}});
  });
}

Prepared prepare_range(const KernelCall& call) {
  if (!call.has_input(2) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType dtype = call.outputs[0].dtype;
  if (call.inputs[0].dtype != dtype || call.inputs[2].dtype != dtype) {
    return Prepared::no("operands of different types");
  }
  if (!is_number(dtype)) return Prepared::no(no_number(dtype));
  if (is_whole(dtype)) return range_kernel<int64_t>(call);  // wraps around, u64 too
  return cpu::for_math_type(dtype, [&]<class M>() { return range_kernel<M>(call); });
}

}  // namespace

std::vector<KernelRow> generate_rows() {
  return {
      {"", "Constant", "own.known", prepare_known<cpu::plan_constant>},
      {"", "ConstantOfShape", "own.fill", prepare_fill},
      {"", "EyeLike", "own.eye", prepare_eye_like},
      {"", "NonZero", "own.known", prepare_known<cpu::plan_non_zero>},
      {"", "OneHot", "own.one_hot", prepare_one_hot},
      {"", "Range", "own.range", prepare_range},
      {"", "Shape", "own.known", prepare_known<cpu::plan_shape>},
      {"", "Size", "own.known", prepare_known<cpu::plan_size>},
  };
}

}  // namespace halfnote::HN_CUDA
