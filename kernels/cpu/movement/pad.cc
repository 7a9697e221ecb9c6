// Pad in its four modes; negative pads crop. A constant pad is a fill and a strided copy, the other
// modes read through one index map an axis.
#include "kernels/cpu/movement/pad.h"

#include <array>
#include <cstring>

#include "kernels/cpu/movement/copy.h"

namespace halfnote::cpu {

namespace {

std::string read_pads(const KernelCall& call, PadPlan& pads) {
  const auto rank = static_cast<int64_t>(call.inputs[0].shape.size());
  std::vector<int64_t> values, axes;
  if (!known_ints(call, 1, values)) return "pads are not known before the first step";
  if (call.has_input(3)) {
    if (!known_ints(call, 3, axes)) return "axes are not known before the first step";
  } else {
    for (int64_t d = 0; d < rank; ++d) axes.push_back(d);
  }
  if (values.size() != 2 * axes.size()) {
    throw shape_error(call, "wrong number of pads", Shape{static_cast<int64_t>(2 * axes.size())},
                      Shape{static_cast<int64_t>(values.size())});
  }
  pads.before.assign(static_cast<size_t>(rank), 0);
  pads.after = pads.before;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(normalize_axis(axes[i], rank));
    pads.before[axis] = values[i];
    pads.after[axis] = values[i + axes.size()];
  }
  return {};
}

CopyJob constant_pad_job(const KernelCall& call, const PadPlan& pads) {
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const Shape from = strides_of(in), to = strides_of(out);
  Shape dims(in.size());
  int64_t first_from = 0, first_to = 0;
  for (size_t d = 0; d < in.size(); ++d) {
    const int64_t skip = std::max<int64_t>(0, -pads.before[d]);
    const int64_t put = std::max<int64_t>(0, pads.before[d]);
    dims[d] = std::max<int64_t>(0, std::min(in[d] - skip, out[d] - put));
    first_from += skip * from[d];
    first_to += put * to[d];
  }
  CopyJob job = plan_copy(dims, from, to);
  job.from = first_from;
  job.to = first_to;
  return job;
}

/// Fills by bytes where they are alike, as those of 0 are: several times as fast as by elements.
template <class T>
void fill(T* first, T* last, T value) {
  std::array<unsigned char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  if (std::ranges::count(bytes, bytes[0]) == static_cast<std::ptrdiff_t>(sizeof(T))) {
    std::memset(first, bytes[0], static_cast<size_t>(last - first) * sizeof(T));
  } else {
    std::fill(first, last, value);
  }
}

/// The part of the input that shows in the output, copied over a filled output.
Prepared constant_pad(const KernelCall& call, const PadPlan& pads) {
  CopyJob job = constant_pad_job(call, pads);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([job = std::move(job), count = call.outputs[0].size(),
                        threads = call.threads](const KernelBuffers& buffers) {
      const T* given = buffers.in<T>(2);
      const T value = given ? *given : T{0};
      T* to_data = buffers.out<T>(0);
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        fill(to_data + begin, to_data + end, value);
      });
      run_copy(job, buffers.in<T>(0), to_data, threads);
    });
  });
}

/// Does the output begin with the input, and go on with zeros?
bool appends_zeros(const KernelCall& call, const PadPlan& plan) {
  if (plan.mode != math::PadMode::kConstant) return false;
  if (call.has_input(2)) {
    const Tensor* value = call.inputs[2].constant;
    if (value == nullptr || !all_zero(*value)) return false;
  }
  bool is_first = true;  // of the dims that are not 1
  for (size_t d = 0; d < plan.after.size(); ++d) {
    if (plan.before[d] != 0 || plan.after[d] < 0 || (plan.after[d] > 0 && !is_first)) return false;
    is_first = is_first && call.outputs[0].shape[d] == 1;
  }
  return true;
}

class AppendingKernel final : public Kernel {
 public:
  explicit AppendingKernel(std::unique_ptr<Kernel> pad) : pad_(std::move(pad)) {}
  void run(const KernelBuffers& buffers) const override { pad_->run(buffers); }
  size_t workspace_bytes() const override { return pad_->workspace_bytes(); }
  bool appends_zeros() const override { return true; }

 private:
  std::unique_ptr<Kernel> pad_;
};

Prepared mapped_pad(const KernelCall& call, const PadPlan& pads) {
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const Shape strides = strides_of(in);
  std::vector<std::vector<int64_t>> maps(
      in.size());  // of each axis: the offset of each output index
  for (size_t d = 0; d < in.size(); ++d) {
    for (int64_t i = 0; i < out[d] && in[d] != 0; ++i) {
      maps[d].push_back(math::pad_source(pads.mode, i - pads.before[d], in[d]) * strides[d]);
    }
  }
  if (maps.empty()) maps.push_back({0});
  const int64_t inner = static_cast<int64_t>(maps.back().size());
  const int64_t rows = inner == 0 ? 0 : element_count(out) / inner;
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, maps = std::move(maps), threads = call.threads](const KernelBuffers& buffers) {
          const T* from = buffers.in<T>(0);
          T* to = buffers.out<T>(0);
          const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, inner));
          parallel_blocks(rows, grain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              int64_t offset = 0;
              for (int64_t d = static_cast<int64_t>(maps.size()) - 2, rest = row; d >= 0; --d) {
                const auto dim = static_cast<int64_t>(maps[d].size());
                offset += maps[d][rest % dim];
                rest /= dim;
              }
              for (int64_t i = 0; i < inner; ++i)
                to[row * inner + i] = from[offset + maps.back()[i]];
            }
          });
        });
  });
}

bool read_mode(const std::string& word, math::PadMode& mode) {
  struct Row {
    std::string_view word;
    math::PadMode mode;
  };
  constexpr Row kModes[] = {{"constant", math::PadMode::kConstant},
                            {"edge", math::PadMode::kEdge},
                            {"reflect", math::PadMode::kReflect},
                            {"wrap", math::PadMode::kWrap}};
  for (const Row& row : kModes) {
    if (row.word != word) continue;
    mode = row.mode;
    return true;
  }
  return false;
}

Prepared prepare_pad(const KernelCall& call) {
  PadPlan plan;
  if (std::string reason = plan_pad(call, plan); !reason.empty()) return Prepared::no(reason);
  if (plan.mode != math::PadMode::kConstant) return mapped_pad(call, plan);
  return as_appending(call, plan, constant_pad(call, plan));
}

}  // namespace

std::string plan_pad(const KernelCall& call, PadPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (std::string reason = read_pads(call, plan); !reason.empty()) return reason;
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  Shape wanted = in;
  for (size_t d = 0; d < in.size(); ++d) {
    wanted[d] = checked_add(checked_add(in[d], plan.before[d]), plan.after[d]);
  }
  if (wanted != out) throw shape_error(call, "wrong output shape", wanted, out);
  if (call.has_input(2) &&
      (call.inputs[2].size() != 1 || call.inputs[2].dtype != call.inputs[0].dtype)) {
    return "the value to pad with is not one of the input's type";
  }
  const std::string mode = attributes_of(call).get_string("mode", "constant");
  if (!read_mode(mode, plan.mode)) return "unknown mode '" + mode + "'";
  if (plan.mode != math::PadMode::kConstant && element_count(in) == 0 && element_count(out) != 0) {
    throw shape_error(call, "cannot pad an empty dim with its own elements", in, out);
  }
  return {};
}

Prepared as_appending(const KernelCall& call, const PadPlan& plan, Prepared prepared) {
  if (!prepared || !appends_zeros(call, plan)) return prepared;
  return Prepared::yes(std::make_unique<AppendingKernel>(std::move(prepared.kernel)));
}

std::vector<KernelRow> pad_rows() { return {{"", "Pad", "reference", prepare_pad}}; }

}  // namespace halfnote::cpu
