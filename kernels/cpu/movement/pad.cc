// Pad in its four modes; negative pads crop. A constant pad is a fill and a strided copy, the other
// modes read through one index map an axis.
#include "kernels/cpu/movement/copy.h"

namespace halfnote::cpu {

namespace {

/// Elements put before (after) each axis; negative ones are cut off.
struct Pads {
  std::vector<int64_t> before, after;
};

std::string read_pads(const KernelCall& call, Pads& pads) {
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

CopyJob constant_pad_job(const KernelCall& call, const Pads& pads) {
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

/// The part of the input that shows in the output, copied over a filled output.
Prepared constant_pad(const KernelCall& call, const Pads& pads) {
  CopyJob job = constant_pad_job(call, pads);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([job = std::move(job), count = call.outputs[0].size(),
                        threads = call.threads](const KernelBuffers& buffers) {
      const T* given = buffers.in<T>(2);
      const T value = given ? *given : T{0};
      T* to_data = buffers.out<T>(0);
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        std::fill(to_data + begin, to_data + end, value);
      });
      run_copy(job, buffers.in<T>(0), to_data, threads);
    });
  });
}

/// Where position `at` of a dim, outside of [0, size) too, reads from.
int64_t source_index(const std::string& mode, int64_t at, int64_t size) {
  if (mode == "edge" || size == 1) {
    return mode == "wrap" ? 0 : std::clamp<int64_t>(at, 0, size - 1);
  }
  const int64_t period = mode == "wrap" ? size : 2 * (size - 1);
  const int64_t inside = (at % period + period) % period;
  return inside < size ? inside : period - inside;
}

Prepared mapped_pad(const KernelCall& call, const Pads& pads, const std::string& mode) {
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const Shape strides = strides_of(in);
  std::vector<std::vector<int64_t>> maps(
      in.size());  // of each axis: the offset of each output index
  for (size_t d = 0; d < in.size(); ++d) {
    if (in[d] == 0 && element_count(out) != 0) {
      throw shape_error(call, "cannot pad an empty dim with its own elements", in, out);
    }
    for (int64_t i = 0; i < out[d] && in[d] != 0; ++i) {
      maps[d].push_back(source_index(mode, i - pads.before[d], in[d]) * strides[d]);
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

/// Reads the pads and holds the shapes against them; the reason why they cannot be read, or an
/// empty string.
std::string check_pads(const KernelCall& call, Pads& pads) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (std::string reason = read_pads(call, pads); !reason.empty()) return reason;
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  Shape wanted = in;
  for (size_t d = 0; d < in.size(); ++d) {
    wanted[d] = checked_add(checked_add(in[d], pads.before[d]), pads.after[d]);
  }
  if (wanted != out) throw shape_error(call, "wrong output shape", wanted, out);
  return {};
}

std::string pad_mode(const KernelCall& call) {
  return attributes_of(call).get_string("mode", "constant");
}

Prepared prepare_pad(const KernelCall& call) {
  Pads pads;
  if (std::string reason = check_pads(call, pads); !reason.empty()) return Prepared::no(reason);
  const std::string mode = pad_mode(call);
  if (mode == "constant") return constant_pad(call, pads);
  if (mode == "reflect" || mode == "edge" || mode == "wrap") return mapped_pad(call, pads, mode);
  return Prepared::no("unknown mode '" + mode + "'");
}

}  // namespace

std::string plan_constant_pad(const KernelCall& call, CopyJob& job) {
  Pads pads;
  if (std::string reason = check_pads(call, pads); !reason.empty()) return reason;
  if (const std::string mode = pad_mode(call); mode != "constant") return "mode '" + mode + "'";
  job = constant_pad_job(call, pads);
  return {};
}

std::vector<KernelRow> pad_rows() { return {{"", "Pad", "reference", prepare_pad}}; }

}  // namespace halfnote::cpu
