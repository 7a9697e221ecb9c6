// Writing by index: ScatterElements, ScatterND, with the reductions add, mul, max and min. Updates
// are applied in their order whatever the number of threads: threads split the output, never the
// updates of one element. Sums of 16-bit elements are kept in f32 and rounded once.
#include "kernels/cpu/movement/scatter.h"

#include "kernels/cpu/movement/parts.h"
#include "kernels/math/binary.h"

namespace halfnote::cpu {

namespace {

using Reduction = ScatterReduction;

bool read_reduction(const KernelCall& call, Reduction& reduction) {
  const std::string word = attributes_of(call).get_string("reduction", "none");
  constexpr std::string_view kWords[] = {"none", "add", "mul", "max", "min"};
  const auto* found = std::find(std::begin(kWords), std::end(kWords), word);
  reduction = static_cast<Reduction>(found - std::begin(kWords));
  return found != std::end(kWords);
}

/// to[i·to_step] = to ∘ from[i].
template <class A, class T>
void combine(Reduction reduction, A* to, const T* from, int64_t count) {
  switch (reduction) {
    case Reduction::kNone:
      for (int64_t i = 0; i < count; ++i) to[i] = load(from[i]);
      return;
    case Reduction::kAdd:
      for (int64_t i = 0; i < count; ++i) to[i] = math::Add::value(to[i], load(from[i]));
      return;
    case Reduction::kMul:
      for (int64_t i = 0; i < count; ++i) to[i] = math::Mul::value(to[i], load(from[i]));
      return;
    case Reduction::kMax:
      for (int64_t i = 0; i < count; ++i) to[i] = math::Max::value(to[i], load(from[i]));
      return;
    case Reduction::kMin:
      for (int64_t i = 0; i < count; ++i) to[i] = math::Min::value(to[i], load(from[i]));
      return;
  }
}

/// Copies the data, lets `scatter` work on an accumulator in math precision (the output itself
/// where it has that precision), and rounds.
template <class T, class Scatter>
Prepared scatter_kernel(const KernelCall& call, Scatter scatter) {
  constexpr bool kWide = !std::is_same_v<T, Math<T>>;
  const int64_t count = call.outputs[0].size();
  const size_t workspace = kWide ? static_cast<size_t>(count) * sizeof(Math<T>) : 0;
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    const T* data = buffers.in<T>(0);
    T* to = buffers.out<T>(0);
    Math<T>* acc = nullptr;
    if constexpr (kWide) {
      acc = reinterpret_cast<Math<T>*>(buffers.workspace);
    } else {
      acc = to;
    }
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      if constexpr (kWide) {
        load_block(data + begin, end - begin, acc + begin);
      } else if (data != to) {
        std::copy(data + begin, data + end, to + begin);
      }
    });
    scatter(buffers, acc, buffers.in<T>(2), threads);
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      store_block(acc + begin, end - begin, to + begin);
    });
  };
  return make_kernel(body, workspace, [](size_t input, size_t) { return input == 0; });
}

/// for_any_type() without bool; without a reduction the bits alone are moved.
template <class Body>
Prepared for_scatter_type(const KernelCall& call, Reduction reduction, Body&& body) {
  const DType dtype = call.outputs[0].dtype;
  if (reduction == Reduction::kNone) return for_element_size(dtype, body);
  return for_any_type(dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("no reduction of bool");
    } else {
      return body.template operator()<T>();
    }
  });
}

/// Why the operands of a scatter do not fit, or an empty string.
std::string unfit_scatter(const KernelCall& call, Reduction& reduction) {
  if (std::string reason = unfit_indices(call, 1); !reason.empty()) return reason;
  if (!call.has_input(2) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].dtype != call.outputs[0].dtype ||
      call.inputs[2].dtype != call.outputs[0].dtype) {
    return "operands of different types";
  }
  if (call.inputs[0].shape != call.outputs[0].shape) {
    throw shape_error(call, "wrong output shape", call.inputs[0].shape, call.outputs[0].shape);
  }
  return read_reduction(call, reduction) ? "" : "unknown reduction";
}

Prepared prepare_scatter_elements(const KernelCall& call) {
  ScatterElementsPlan plan;
  if (std::string why = plan_scatter_elements(call, plan); !why.empty()) return Prepared::no(why);
  const int64_t row = plan.own_rows == 0 ? 0 : plan.runs.count / plan.own_rows;
  const int64_t grain = row * std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, row));
  return for_scatter_type(call, plan.reduction, [&]<class T>() {
    return scatter_kernel<T>(
        call, [=, reader = IndexReader(call, 1)](const KernelBuffers& buffers, Math<T>* acc,
                                                 const T* updates, int threads) {
          const Runs& runs = plan.runs;
          parallel_blocks(runs.count, grain, threads, [&](int64_t begin, int64_t end) {
            walk_runs<1>(runs, begin, end, [&](int64_t at, const auto& offset, int64_t length) {
              for (int64_t i = at; i < at + length; ++i) {
                const int64_t place = offset[0] + (i - at) * runs.step(0) +
                                      reader.read(buffers, i, plan.dim) * plan.along;
                combine(plan.reduction, acc + place, updates + i, 1);
              }
            });
          });
        });
  });
}

Prepared prepare_scatter_nd(const KernelCall& call) {
  ScatterNdPlan plan;
  if (std::string why = plan_scatter_nd(call, plan); !why.empty()) return Prepared::no(why);
  return for_scatter_type(call, plan.reduction, [&]<class T>() {
    return scatter_kernel<T>(
        call, [=, reader = IndexReader(call, 1)](const KernelBuffers& buffers, Math<T>* acc,
                                                 const T* updates, int threads) {
          const auto width = static_cast<int64_t>(plan.dims.size());
          // Every thread applies all updates, each to its own columns.
          parallel_blocks(plan.inner, 256, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = 0; i < plan.tuples; ++i) {
              int64_t at = 0;
              for (int64_t d = 0; d < width; ++d) {
                const int64_t dim = plan.dims[static_cast<size_t>(d)];
                at = at * dim + reader.read(buffers, i * width + d, dim);
              }
              combine(plan.reduction, acc + at * plan.inner + begin,
                      updates + i * plan.inner + begin, end - begin);
            }
          });
        });
  });
}

}  // namespace

std::string plan_scatter_elements(const KernelCall& call, ScatterElementsPlan& plan) {
  if (std::string why = unfit_scatter(call, plan.reduction); !why.empty()) return why;
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", 0), data.size()));
  if (indices.size() != data.size() || indices != call.inputs[2].shape) {
    throw shape_error(call, "indices and updates of different shapes", indices,
                      call.inputs[2].shape);
  }
  Shape strides = strides_of(data);
  plan.along = strides[axis];
  plan.dim = data[axis];
  strides[axis] = 0;
  plan.own_rows = 1;
  for (size_t d = 0; d < data.size(); ++d) {
    if (d < axis) plan.own_rows *= indices[d];
    if (d != axis && indices[d] > data[d]) {
      throw shape_error(call, "more indices than elements", data, indices);
    }
  }
  plan.runs = plan_runs(indices, {strides});
  return {};
}

std::string plan_scatter_nd(const KernelCall& call, ScatterNdPlan& plan) {
  if (std::string why = unfit_scatter(call, plan.reduction); !why.empty()) return why;
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  if (indices.empty() || indices.back() > static_cast<int64_t>(data.size())) {
    throw shape_error(call, "the last dim of the indices exceeds the rank of the data", data,
                      indices);
  }
  const int64_t width = indices.back();
  Shape wanted(indices.begin(), indices.end() - 1);
  wanted.insert(wanted.end(), data.begin() + width, data.end());
  if (wanted != call.inputs[2].shape) {
    throw shape_error(call, "wrong shape of the updates", wanted, call.inputs[2].shape);
  }
  plan.dims.assign(data.begin(), data.begin() + width);
  plan.inner = element_count(std::span<const int64_t>(data).subspan(plan.dims.size()));
  plan.tuples = element_count(std::span<const int64_t>(indices).first(indices.size() - 1));
  return {};
}

std::vector<KernelRow> scatter_rows() {
  return {
      {"", "ScatterElements", "reference", prepare_scatter_elements},
      {"", "ScatterND", "reference", prepare_scatter_nd},
  };
}

}  // namespace halfnote::cpu
