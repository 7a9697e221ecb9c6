// Ops whose elements come from shapes, attributes or scalars: Constant, ConstantOfShape, EyeLike,
// NonZero, OneHot, Range, Shape, Size, Trilu.
#include <cstring>

#include "kernels/cpu/movement/fill.h"
#include "kernels/cpu/movement/known.h"
#include "kernels/cpu/movement/one_hot.h"
#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/movement/trilu.h"
#include "kernels/math/binary.h"
#include "kernels/math/convert.h"

namespace halfnote::cpu {

namespace {

/// The reason why a value made beforehand is not what the call wants, or an empty string.
std::string unfit_value(const KernelCall& call, const Tensor& value) {
  if (value.dtype() != call.outputs[0].dtype) return "wrong type of the output";
  if (value.size() != call.outputs[0].size()) {
    throw shape_error(call, "wrong output shape", value.shape(), call.outputs[0].shape);
  }
  return size_of(value.dtype()) == 0 ? "cannot write strings" : "";
}

/// A kernel that writes the bytes of a tensor made beforehand.
template <std::string (*kPlan)(const KernelCall&, Tensor&)>
Prepared prepare_known(const KernelCall& call) {
  Tensor value;
  if (std::string why = kPlan(call, value); !why.empty()) return Prepared::no(why);
  return make_kernel([value = std::move(value)](const KernelBuffers& buffers) {
    if (value.byte_size() != 0) {
      std::memcpy(buffers.outputs[0], value.bytes(), value.byte_size());
    }
  });
}

template <class T>
Tensor vector_of(const std::vector<T>& values) {
  return Tensor::of<T>({static_cast<int64_t>(values.size())}, std::span<const T>(values));
}

Prepared prepare_constant_of_shape(const KernelCall& call) {
  Tensor value;
  if (std::string why = plan_fill(call, value); !why.empty()) return Prepared::no(why);
  return for_element_size(value.dtype(), [&]<class T>() {
    return make_kernel([value, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      T element;
      std::memcpy(&element, value.bytes(), sizeof(T));
      std::fill_n(buffers.out<T>(0), count, element);
    });
  });
}

Prepared prepare_eye_like(const KernelCall& call) {
  const Shape& shape = call.outputs[0].shape;
  if (shape.size() != 2) throw shape_error(call, "needs two dims", Shape{0, 0}, shape);
  const int64_t diagonal = attributes_of(call).get_int("k", 0);
  return for_any_type(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=](const KernelBuffers& buffers) {
      const T one = math::convert_element<T>(1.0f), zero = math::convert_element<T>(0.0f);
      T* to = buffers.out<T>(0);
      for (int64_t i = 0; i < shape[0]; ++i) {
        for (int64_t j = 0; j < shape[1]; ++j)
          to[i * shape[1] + j] = j - i == diagonal ? one : zero;
      }
    });
  });
}

/// start + i·delta, each rounded once.
Prepared prepare_range(const KernelCall& call) {
  if (!call.has_input(2) || call.inputs[0].dtype != call.outputs[0].dtype) {
    return Prepared::no("operands of different types");
  }
  return for_any_type(call.outputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return make_kernel([count = call.outputs[0].size()](const KernelBuffers& buffers) {
        const Math<T> start = load(*buffers.in<T>(0)), delta = load(*buffers.in<T>(2));
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<Math<T>>(i);
          buffers.out<T>(0)[i] =
              store<T>(math::Add::value<Math<T>>(start, math::Mul::value<Math<T>>(at, delta)));
        }
      });
    }
  });
}

Prepared prepare_trilu(const KernelCall& call) {
  TriluPlan plan;
  if (std::string why = plan_trilu(call, plan); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [=, count = call.inputs[0].size(),
                       threads = call.threads](const KernelBuffers& buffers) {
      const int64_t* given = buffers.in<int64_t>(1);
      const int64_t diagonal = given ? *given : 0, columns = plan.columns;
      const T* from = buffers.in<T>(0);
      T* to = buffers.out<T>(0);
      const int64_t all_rows = columns == 0 ? 0 : count / columns;
      parallel_blocks(all_rows, 64, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t j = 0; j < columns; ++j) {
            const bool keep = plan.keeps(row % plan.rows, j, diagonal);
            to[row * columns + j] = keep ? from[row * columns + j] : T{0};
          }
        }
      });
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

/// Indices of any numeric type; one outside of [-depth, depth) gives a row of off values.
template <class I>
Prepared one_hot_kernel(const KernelCall& call, const OneHotPlan& plan) {
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const int64_t depth = plan.depth, inner = plan.inner;
      const I* indices = buffers.in<I>(0);
      const T off = buffers.in<T>(2)[0], on = buffers.in<T>(2)[1];
      T* to = buffers.out<T>(0);
      std::fill_n(to, count, off);
      for (int64_t i = 0; depth != 0 && i < count / depth; ++i) {
        int64_t index = math::convert_element<int64_t>(indices[i]);
        if (index < -depth || index >= depth) continue;
        if (index < 0) index += depth;
        to[(i / inner * depth + index) * inner + i % inner] = on;
      }
    });
  });
}

Prepared prepare_one_hot(const KernelCall& call) {
  OneHotPlan plan;
  if (std::string why = plan_one_hot(call, plan); !why.empty()) return Prepared::no(why);
  return for_any_type(call.inputs[0].dtype,
                      [&]<class I>() { return one_hot_kernel<I>(call, plan); });
}

}  // namespace

std::string plan_constant(const KernelCall& call, Tensor& value) {
  const Attributes& attributes = attributes_of(call);
  if (const Attribute* given = attributes.find("value")) {
    const auto* tensor = std::get_if<Tensor>(given);
    if (tensor == nullptr) return "value is no tensor";
    value = *tensor;
  } else if (attributes.has("value_float")) {
    value = Tensor::scalar(attributes.get_float("value_float", 0));
  } else if (attributes.has("value_int")) {
    value = Tensor::scalar(attributes.get_int("value_int", 0));
  } else if (attributes.has("value_floats")) {
    value = vector_of(attributes.get_floats("value_floats"));
  } else if (attributes.has("value_ints")) {
    value = vector_of(attributes.get_ints("value_ints"));
  } else {
    return "a constant that is neither a tensor nor a number";
  }
  return unfit_value(call, value);
}

std::string plan_shape(const KernelCall& call, Tensor& value) {
  const Shape& shape = call.inputs[0].shape;
  const auto rank = static_cast<int64_t>(shape.size());
  const auto clamp = [rank](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = clamp(attributes_of(call).get_int("start", 0));
  const int64_t end = std::max(start, clamp(attributes_of(call).get_int("end", rank)));
  value = vector_of(Shape(shape.begin() + start, shape.begin() + end));
  return unfit_value(call, value);
}

std::string plan_size(const KernelCall& call, Tensor& value) {
  value = Tensor::scalar(call.inputs[0].size());
  return unfit_value(call, value);
}

std::string plan_non_zero(const KernelCall& call, Tensor& value) {
  const Operand& input = call.inputs[0];
  if (!input.constant) return "the shape of the result depends on the data";
  const Shape strides = strides_of(input.shape);
  std::vector<int64_t> found;
  for (int64_t i = 0; i < input.size(); ++i) {
    if (input.constant->at_as_double(i) != 0) found.push_back(i);
  }
  const auto columns = static_cast<int64_t>(found.size());
  value = Tensor(DType::kI64, {static_cast<int64_t>(strides.size()), columns});
  for (size_t d = 0; d < strides.size(); ++d) {
    for (size_t i = 0; i < found.size(); ++i) {
      value.mutable_data<int64_t>()[d * found.size() + i] = found[i] / strides[d] % input.shape[d];
    }
  }
  return unfit_value(call, value);
}

std::string plan_fill(const KernelCall& call, Tensor& value) {
  const Attribute* found = attributes_of(call).find("value");
  const Tensor* given = found ? std::get_if<Tensor>(found) : nullptr;
  value = given ? *given : Tensor::scalar(0.0f);
  if (value.size() != 1) {
    throw shape_error(call, "value must have one element", Shape{1}, value.shape());
  }
  return value.dtype() == call.outputs[0].dtype ? "" : "wrong type of the output";
}

std::string plan_trilu(const KernelCall& call, TriluPlan& plan) {
  const Shape& shape = call.inputs[0].shape;
  if (shape.size() < 2) throw shape_error(call, "needs two dims", Shape{0, 0}, shape);
  plan.upper = attributes_of(call).get_int("upper", 1) != 0;
  plan.rows = shape[shape.size() - 2];
  plan.columns = shape.back();
  return {};
}

std::string plan_one_hot(const KernelCall& call, OneHotPlan& plan) {
  if (!call.has_input(2) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[2].size() != 2 || call.inputs[2].dtype != call.outputs[0].dtype) {
    return "values are not two elements of the type of the output";
  }
  const Shape& out = call.outputs[0].shape;
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", -1), out.size()));
  plan.depth = out[axis];
  plan.inner = element_count(std::span<const int64_t>(out).subspan(axis + 1));
  if (call.outputs[0].size() != call.inputs[0].size() * plan.depth) {
    throw shape_error(call, "wrong output shape", call.inputs[0].shape, out);
  }
  return {};
}

std::vector<KernelRow> generate_rows() {
  return {
      {"", "Constant", "reference", prepare_known<plan_constant>},
      {"", "ConstantOfShape", "reference", prepare_constant_of_shape},
      {"", "EyeLike", "reference", prepare_eye_like},
      {"", "NonZero", "reference", prepare_known<plan_non_zero>},
      {"", "OneHot", "reference", prepare_one_hot},
      {"", "Range", "reference", prepare_range},
      {"", "Shape", "reference", prepare_known<plan_shape>},
      {"", "Size", "reference", prepare_known<plan_size>},
      {"", "Trilu", "reference", prepare_trilu},
  };
}

}  // namespace halfnote::cpu
