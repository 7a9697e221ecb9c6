// Reading by index: Gather, GatherElements, GatherND, ReverseSequence. Indices are checked as they
// are read.
#include "kernels/cpu/movement/gather.h"

#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

int64_t product(const Shape& shape, size_t begin, size_t end) {
  return element_count(std::span<const int64_t>(shape).subspan(begin, end - begin));
}

int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, elements));
}

/// Why data, indices and output do not fit a gather, or an empty string.
std::string unfit_gather(const KernelCall& call) {
  if (std::string reason = unfit_indices(call, 1); !reason.empty()) return reason;
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  return call.inputs[0].dtype == call.outputs[0].dtype ? "" : "operands of different types";
}

/// `index_at(i)`: which of `dim` rows of `inner` elements is the i-th that is picked.
template <class T, class IndexAt>
void gather_rows_of(const KernelBuffers& buffers, int64_t outer, int64_t picks, int64_t dim,
                    int64_t inner, int threads, const IndexAt& index_at) {
  const T* from = buffers.in<T>(0);
  T* to = buffers.out<T>(0);
  parallel_blocks(outer * picks, grain_of(inner), threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t first = i % picks, count = std::min(picks - first, end - i);
      const T* rows = from + i / picks * dim * inner;
      if (inner == 1) {
        for (int64_t k = 0; k < count; ++k) to[i + k] = rows[index_at(first + k)];
      } else {
        for (int64_t k = 0; k < count; ++k)
          std::copy_n(rows + index_at(first + k) * inner, inner, to + (i + k) * inner);
      }
      i += count;
    }
  });
}

Prepared prepare_gather(const KernelCall& call) {
  if (std::string reason = unfit_gather(call); !reason.empty()) return Prepared::no(reason);
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", 0), data.size()));
  Shape wanted(data.begin(), data.begin() + static_cast<int64_t>(axis));
  wanted.insert(wanted.end(), indices.begin(), indices.end());
  wanted.insert(wanted.end(), data.begin() + static_cast<int64_t>(axis) + 1, data.end());
  if (wanted != call.outputs[0].shape) {
    throw shape_error(call, "wrong output shape", wanted, call.outputs[0].shape);
  }
  const int64_t outer = product(data, 0, axis), inner = product(data, axis + 1, data.size());
  const int64_t picks = element_count(indices);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, reader = IndexReader(call, 1), dim = data[axis],
         threads = call.threads](const KernelBuffers& buffers) {
          const auto index_at = [&](int64_t i) { return reader.read(buffers, i, dim); };
          if (outer == 1)
            return gather_rows_of<T>(buffers, outer, picks, dim, inner, threads, index_at);
          int64_t* known = part<int64_t>(buffers, 0);  // checked once, read for each outer element
          parallel_blocks(picks, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) known[i] = index_at(i);
          });
          gather_rows_of<T>(buffers, outer, picks, dim, inner, threads,
                            [known](int64_t i) { return known[i]; });
        },
        outer == 1 ? 0 : static_cast<size_t>(picks) * sizeof(int64_t));
  });
}

Prepared prepare_gather_elements(const KernelCall& call) {
  GatherElementsPlan plan;
  if (std::string why = plan_gather_elements(call, plan); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, reader = IndexReader(call, 1),
                        threads = call.threads](const KernelBuffers& buffers) {
      const T* from = buffers.in<T>(0);
      T* to = buffers.out<T>(0);
      const Runs& runs = plan.runs;
      const int64_t step = runs.step(0);
      parallel_blocks(runs.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        walk_runs<1>(runs, begin, end, [&](int64_t at, const auto& offset, int64_t length) {
          for (int64_t i = at; i < at + length; ++i) {
            to[i] =
                from[offset[0] + (i - at) * step + reader.read(buffers, i, plan.dim) * plan.along];
          }
        });
      });
    });
  });
}

Prepared prepare_gather_nd(const KernelCall& call) {
  GatherNdPlan plan;
  if (std::string why = plan_gather_nd(call, plan); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, reader = IndexReader(call, 1),
                        threads = call.threads](const KernelBuffers& buffers) {
      const int64_t inner = plan.inner;
      const T* from = buffers.in<T>(0);
      T* to = buffers.out<T>(0);
      const auto gather = [&](int64_t i) {
        int64_t at = 0;
        for (size_t d = 0; d < plan.dims.size(); ++d) {
          const auto place = i * static_cast<int64_t>(plan.dims.size()) + static_cast<int64_t>(d);
          at = at * plan.dims[d] + reader.read(buffers, place, plan.dims[d]);
        }
        std::copy_n(from + i / plan.tuples * plan.batch + at * inner, inner, to + i * inner);
      };
      parallel_blocks(plan.batches * plan.tuples, grain_of(inner), threads,
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) gather(i);
                      });
    });
  });
}

Error length_error(int64_t length, int64_t steps) {
  return Error(ErrorCode::kData, "sequence length out of range")
      .at({.op = "ReverseSequence"})
      .expected("a length in [0, " + std::to_string(steps) + "]", std::to_string(length));
}

/// Along the time axis the first `sequence_lens[batch]` elements are reversed, the rest is copied.
Prepared prepare_reverse_sequence(const KernelCall& call) {
  ReversePlan plan;
  if (std::string why = plan_reverse_sequence(call, plan); !why.empty()) return Prepared::no(why);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, reader = IndexReader(call, 1), threads = call.threads](const KernelBuffers& buffers) {
          const T* from = buffers.in<T>(0);
          T* to = buffers.out<T>(0);
          parallel_blocks(plan.batches, 1, threads, [&](int64_t begin, int64_t end) {
            for (int64_t b = begin; b < end; ++b) {
              const int64_t length = reader.raw(buffers, b);
              if (length < 0 || length > plan.steps) throw length_error(length, plan.steps);
              for (int64_t t = 0; t < plan.steps; ++t) {
                const int64_t source = t < length ? length - 1 - t : t;
                std::copy_n(from + b * plan.batch_stride + source * plan.time_stride, plan.inner,
                            to + b * plan.batch_stride + t * plan.time_stride);
              }
            }
          });
        });
  });
}

}  // namespace

std::string plan_reverse_sequence(const KernelCall& call, ReversePlan& plan) {
  if (std::string reason = unfit_gather(call); !reason.empty()) return reason;
  const Shape& data = call.inputs[0].shape;
  const auto time_axis = static_cast<size_t>(attributes_of(call).get_int("time_axis", 0));
  const auto batch_axis = static_cast<size_t>(attributes_of(call).get_int("batch_axis", 1));
  if (data.size() < 2 || time_axis + batch_axis != 1 || time_axis * batch_axis != 0 ||
      call.outputs[0].shape != data || call.inputs[1].size() != data[batch_axis]) {
    throw shape_error(call, "time and batch must be the axes 0 and 1, with a length for each batch",
                      data, call.inputs[1].shape);
  }
  plan.steps = data[time_axis];
  plan.batches = data[batch_axis];
  plan.inner = product(data, 2, data.size());
  plan.time_stride = time_axis == 0 ? plan.batches * plan.inner : plan.inner;
  plan.batch_stride = time_axis == 0 ? plan.inner : plan.steps * plan.inner;
  return {};
}

std::string plan_gather_nd(const KernelCall& call, GatherNdPlan& plan) {
  if (std::string reason = unfit_gather(call); !reason.empty()) return reason;
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  const int64_t batch_rank = attributes_of(call).get_int("batch_dims", 0);
  if (indices.empty() || batch_rank < 0 || batch_rank >= static_cast<int64_t>(indices.size()) ||
      batch_rank + indices.back() > static_cast<int64_t>(data.size())) {
    throw shape_error(call, "the last dim of the indices exceeds the rank of the data", data,
                      indices);
  }
  const auto lead = static_cast<size_t>(batch_rank);
  const auto width = static_cast<size_t>(indices.back());
  Shape wanted(indices.begin(), indices.end() - 1);
  wanted.insert(wanted.end(), data.begin() + static_cast<int64_t>(lead + width), data.end());
  if (wanted != call.outputs[0].shape) {
    throw shape_error(call, "wrong output shape", wanted, call.outputs[0].shape);
  }
  plan.batches = product(data, 0, lead);
  plan.inner = product(data, lead + width, data.size());
  plan.tuples = product(indices, lead, indices.size() - 1);
  if (plan.batches != product(indices, 0, lead)) {
    throw shape_error(call, "batch dims of data and indices differ", data, indices);
  }
  plan.dims.assign(data.begin() + static_cast<int64_t>(lead),
                   data.begin() + static_cast<int64_t>(lead + width));
  plan.batch = element_count(plan.dims) * plan.inner;
  return {};
}

std::string plan_gather_elements(const KernelCall& call, GatherElementsPlan& plan) {
  if (std::string reason = unfit_gather(call); !reason.empty()) return reason;
  const Shape &data = call.inputs[0].shape, &indices = call.inputs[1].shape;
  const auto axis =
      static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", 0), data.size()));
  if (indices.size() != data.size() || indices != call.outputs[0].shape) {
    throw shape_error(call, "wrong output shape", indices, call.outputs[0].shape);
  }
  Shape strides = strides_of(data);
  plan.along = strides[axis];
  plan.dim = data[axis];
  strides[axis] = 0;
  for (size_t d = 0; d < data.size(); ++d) {
    if (d != axis && indices[d] > data[d]) {
      throw shape_error(call, "more indices than elements", data, indices);
    }
  }
  plan.runs = plan_runs(indices, {strides});
  return {};
}

std::vector<KernelRow> gather_rows() {
  return {
      {"", "Gather", "reference", prepare_gather},
      {"", "GatherElements", "reference", prepare_gather_elements},
      {"", "GatherND", "reference", prepare_gather_nd},
      {"", "ReverseSequence", "reference", prepare_reverse_sequence},
  };
}

}  // namespace halfnote::cpu
