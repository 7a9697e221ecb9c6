// Ops that are strided copies: Transpose, Concat, Split, Slice, Expand, Tile, DepthToSpace,
// SpaceToDepth.
#include "kernels/cpu/movement/copy.h"

#include "kernels/cpu/elementwise/broadcast.h"

namespace halfnote::cpu {

namespace {

/// Smaller dims are not worth turning squares.
constexpr int64_t kLeastTurned = 8;

/// The job as one that turns a matrix, if its innermost dim is adjacent in the target and another
/// one in the source.
Turn plan_turn(const Runs& runs) {
  const size_t rank = runs.dims.size(), inner = rank - 1;
  if (runs.step(1) != 1 || runs.step(0) == 1 || runs.dims[inner] < kLeastTurned) return {};
  const Shape& from = runs.strides[0];
  const auto adjacent = static_cast<size_t>(std::ranges::find(from, 1) - from.begin());
  if (adjacent == rank || runs.dims[adjacent] < kLeastTurned) return {};
  Turn turn;
  turn.rows = runs.dims[adjacent];
  turn.columns = runs.dims[inner];
  turn.from_step = from[inner];
  turn.to_step = runs.strides[1][adjacent];
  Shape dims, from_rest, to_rest;
  for (size_t d = 0; d < inner; ++d) {
    if (d == adjacent) continue;
    dims.push_back(runs.dims[d]);
    from_rest.push_back(from[d]);
    to_rest.push_back(runs.strides[1][d]);
  }
  turn.rest = plan_runs(dims, {from_rest, to_rest});
  return turn;
}

}  // namespace

CopyJob plan_copy(const Shape& dims, const Shape& from_strides, const Shape& to_strides) {
  CopyJob job;
  job.runs = plan_runs(dims, {from_strides, to_strides});
  job.turn = plan_turn(job.runs);
  return job;
}

bool keeps_first_bytes(const KernelCall& call, const std::vector<CopyJob>& jobs) {
  if (jobs.size() != 1 || call.outputs.size() != 1 || size_of(call.outputs[0].dtype) == 0)
    return false;
  constexpr size_t kLittle = size_t{64} << 10;
  const auto elements_left = static_cast<size_t>(call.inputs[0].size() - call.outputs[0].size());
  const size_t whole = static_cast<size_t>(call.inputs[0].size()) * size_of(call.inputs[0].dtype);
  const size_t left = elements_left * size_of(call.inputs[0].dtype);
  if (call.inputs[0].size() < call.outputs[0].size() || left > std::max(kLittle, whole / 4))
    return false;
  const CopyJob& job = jobs.front();
  const bool adjacent = job.runs.count == 1 || (job.runs.dims.size() == 1 &&
                                                job.runs.step(0) == 1 && job.runs.step(1) == 1);
  return adjacent && job.from == 0 && job.to == 0 && job.runs.count == call.outputs[0].size();
}

Prepared make_copies(const KernelCall& call, std::vector<CopyJob> jobs) {
  if (keeps_first_bytes(call, jobs)) return same_bytes(call);
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [jobs = std::move(jobs), threads = call.threads](const KernelBuffers& buffers) {
          for (const CopyJob& job : jobs) {
            run_copy(job, buffers.in<T>(job.input), buffers.out<T>(job.output), threads);
          }
        });
  });
}

namespace {

/// The reason why the call lacks an operand or mixes types, or an empty string.
std::string unfit_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  return call.inputs[0].dtype == call.outputs[0].dtype ? "" : "operands of different types";
}

Prepared prepare_transpose(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  std::vector<int64_t> order = attributes_of(call).get_ints("perm");
  if (order.empty()) {
    for (size_t d = in.size(); d-- > 0;) order.push_back(static_cast<int64_t>(d));
  }
  if (order.size() != in.size() || out.size() != in.size()) {
    throw shape_error(call, "perm has another rank than the data", in, order);
  }
  const Shape strides = strides_of(in);
  Shape from(in.size()), wanted(in.size());
  for (size_t d = 0; d < in.size(); ++d) {
    const auto source = static_cast<size_t>(normalize_axis(order[d], in.size()));
    from[d] = strides[source];
    wanted[d] = in[source];
  }
  if (wanted != out) throw shape_error(call, "wrong output shape", wanted, out);
  return make(call, {plan_copy(out, from, strides_of(out))});
}

/// Concat and Split: part `k` lies in the whole from `start` on along the axis.
CopyJob part_job(const Shape& part, const Shape& whole, int64_t axis, int64_t start, bool split) {
  const Shape whole_strides = strides_of(whole), part_strides = strides_of(part);
  CopyJob job = split ? plan_copy(part, whole_strides, part_strides)
                      : plan_copy(part, part_strides, whole_strides);
  (split ? job.from : job.to) = start * whole_strides[axis];
  return job;
}

void check_part(const KernelCall& call, Shape part, const Shape& whole, int64_t axis) {
  Shape wanted = whole;
  if (part.size() == whole.size()) wanted[axis] = part[axis];
  if (part != wanted) throw shape_error(call, "a part does not fit the whole", wanted, part);
}

Prepared prepare_concat(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape& whole = call.outputs[0].shape;
  const int64_t axis = normalize_axis(attributes_of(call).get_int("axis", 0), whole.size());
  std::vector<CopyJob> jobs;
  int64_t start = 0;
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    const Shape& part = call.inputs[k].shape;
    check_part(call, part, whole, axis);
    jobs.push_back(part_job(part, whole, axis, start, false));
    jobs.back().input = k;
    start += part[axis];
  }
  if (start != whole[axis]) {
    throw shape_error(call, "the parts do not fill the output", Shape{whole[axis]}, Shape{start});
  }
  return make(call, std::move(jobs));
}

Prepared prepare_split(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape& whole = call.inputs[0].shape;
  const int64_t axis = normalize_axis(attributes_of(call).get_int("axis", 0), whole.size());
  std::vector<CopyJob> jobs;
  int64_t start = 0;
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    if (!call.outputs[k].present()) return Prepared::no("an output without a shape");
    const Shape& part = call.outputs[k].shape;
    check_part(call, part, whole, axis);
    jobs.push_back(part_job(part, whole, axis, start, true));
    jobs.back().output = k;
    start += part[axis];
  }
  if (start > whole[axis]) {
    throw shape_error(call, "the parts exceed the input", Shape{whole[axis]}, Shape{start});
  }
  return make(call, std::move(jobs));
}

/// One axis of a slice.
struct SliceAxis {
  int64_t start = 0, end = 0, step = 1;
};

/// The number of elements of the slice of a dim, with `start` clamped as ONNX says.
int64_t clamp_slice(SliceAxis& slice, int64_t dim) {
  const auto wrap = [dim](int64_t at) { return at < 0 ? at + dim : at; };
  if (slice.step > 0) {
    slice.start = std::clamp<int64_t>(wrap(slice.start), 0, dim);
    slice.end = std::clamp<int64_t>(wrap(slice.end), 0, dim);
    return slice.start < slice.end ? (slice.end - slice.start - 1) / slice.step + 1 : 0;
  }
  if (dim == 0) return 0;
  slice.start = std::clamp<int64_t>(wrap(slice.start), 0, dim - 1);
  slice.end = std::clamp<int64_t>(wrap(slice.end), -1, dim - 1);
  return slice.start > slice.end ? (slice.start - slice.end - 1) / -slice.step + 1 : 0;
}

/// Inputs starts, ends, axes, steps; the reason why they cannot be read, or an empty string.
std::string read_slices(const KernelCall& call, std::vector<SliceAxis>& slices) {
  std::vector<int64_t> starts, ends, axes, steps;
  const size_t rank = call.inputs[0].shape.size();
  if (!known_ints(call, 1, starts) || !known_ints(call, 2, ends)) {
    return "starts and ends are not known before the first step";
  }
  if (call.has_input(3) && !known_ints(call, 3, axes)) {
    return "axes are not known before the first step";
  }
  if (call.has_input(4) && !known_ints(call, 4, steps)) {
    return "steps are not known before the first step";
  }
  slices.resize(rank);
  for (size_t d = 0; d < rank; ++d) slices[d].end = call.inputs[0].shape[d];
  if (ends.size() != starts.size() || (!axes.empty() && axes.size() != starts.size()) ||
      (!steps.empty() && steps.size() != starts.size())) {
    throw shape_error(call, "starts, ends, axes and steps of different lengths",
                      Shape{static_cast<int64_t>(starts.size())},
                      Shape{static_cast<int64_t>(ends.size())});
  }
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t axis = axes.empty() ? static_cast<int64_t>(i) : axes[i];
    SliceAxis& slice = slices[static_cast<size_t>(normalize_axis(axis, rank))];
    slice = {starts[i], ends[i], steps.empty() ? 1 : steps[i]};
    if (slice.step == 0 || slice.step == std::numeric_limits<int64_t>::min()) {
      throw Error(ErrorCode::kModel, "invalid step of a slice").at({.op = std::string(call.op)});
    }
  }
  return {};
}

Prepared prepare_slice(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  std::vector<SliceAxis> slices;
  if (std::string reason = read_slices(call, slices); !reason.empty()) return Prepared::no(reason);
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const Shape strides = strides_of(in);
  Shape from(in.size()), wanted(in.size());
  int64_t first = 0;
  for (size_t d = 0; d < in.size(); ++d) {
    wanted[d] = clamp_slice(slices[d], in[d]);
    // With at most one element the step is never taken; a huge one must not be multiplied.
    from[d] = wanted[d] > 1 ? strides[d] * slices[d].step : 0;
    if (wanted[d] > 0) first += strides[d] * slices[d].start;
  }
  if (wanted != out) throw shape_error(call, "wrong output shape", wanted, out);
  CopyJob job = plan_copy(out, from, strides_of(out));
  job.from = first;
  return make(call, {std::move(job)});
}

Prepared prepare_expand(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const Shape own = strides_of(in), to = strides_of(out);
  plan_broadcast({in}, out);  // checks that it broadcasts
  Shape from(out.size(), 0);
  const size_t lead = out.size() - in.size();
  for (size_t d = 0; d < in.size(); ++d) from[lead + d] = in[d] == 1 ? 0 : own[d];
  return make(call, {plan_copy(out, from, to)});
}

/// Every dim becomes (repeats, dim), the first with stride 0.
Prepared prepare_tile(const KernelCall& call, CopyMaker make) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  if (in.size() != out.size()) throw shape_error(call, "wrong output shape", in, out);
  const Shape own = strides_of(in);
  Shape dims, from;
  for (size_t d = 0; d < in.size(); ++d) {
    const int64_t repeats = in[d] == 0 ? 0 : out[d] / in[d];
    if (repeats * in[d] != out[d]) throw shape_error(call, "no multiple of the input", in, out);
    dims.insert(dims.end(), {repeats, in[d]});
    from.insert(from.end(), {0, own[d]});
  }
  return make(call, {plan_copy(dims, from, strides_of(dims))});
}

/// (N, C, H, W) seen with blocks of b×b: the channel-first order of either side as six dims and
/// their strides.
Prepared prepare_space_depth(const KernelCall& call, CopyMaker make, bool to_depth,
                             bool depth_first) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  const int64_t block = attributes_of(call).get_int("blocksize", 0);
  if (in.size() != 4 || out.size() != 4 || block <= 0) {
    throw shape_error(call, "four dims and a positive blocksize are needed", in, out);
  }
  const Shape& wide = to_depth ? in : out;  // the side with the larger H and W
  const Shape& deep = to_depth ? out : in;  // the side with more channels
  const Shape wanted = {wide[0], wide[1] * block * block, wide[2] / block, wide[3] / block};
  if (deep != wanted || wide[2] % block != 0 || wide[3] % block != 0) {
    throw shape_error(call, "shapes do not fit the blocksize", wanted, deep);
  }
  // Six dims: n, c, h, row in the block, w, column in the block.
  const Shape dims = {wide[0], wide[1], deep[2], block, deep[3], block};
  const Shape wide_strides = strides_of(dims);
  const int64_t area = deep[2] * deep[3];
  const int64_t channel = depth_first ? block * block * area : area;
  const int64_t column = depth_first ? area : wide[1] * area;
  const Shape deep_strides = {deep[1] * area, channel, deep[3], column * block, 1, column};
  return make(call, {to_depth ? plan_copy(dims, wide_strides, deep_strides)
                              : plan_copy(dims, deep_strides, wide_strides)});
}

Prepared prepare_depth_to_space(const KernelCall& call, CopyMaker make) {
  return prepare_space_depth(call, make, false,
                             attributes_of(call).get_string("mode", "DCR") == "CRD");
}

Prepared prepare_space_to_depth(const KernelCall& call, CopyMaker make) {
  return prepare_space_depth(call, make, true, false);
}

struct CopyOp {
  std::string_view op;
  Prepared (*prepare)(const KernelCall& call, CopyMaker make);
};

constexpr CopyOp kCopyOps[] = {
    {"Concat", prepare_concat},
    {"DepthToSpace", prepare_depth_to_space},
    {"Expand", prepare_expand},
    {"Slice", prepare_slice},
    {"SpaceToDepth", prepare_space_to_depth},
    {"Split", prepare_split},
    {"Tile", prepare_tile},
    {"Transpose", prepare_transpose},
};

Prepared prepare_on_cpu(const KernelCall& call) { return prepare_copies(call, make_copies); }

}  // namespace

Prepared prepare_copies(const KernelCall& call, CopyMaker make) {
  for (const CopyOp& row : kCopyOps) {
    if (row.op == call.op) return row.prepare(call, make);
  }
  return Prepared::no("no strided copy");
}

std::vector<KernelRow> copy_rows(std::string_view name, Prepared (*prepare)(const KernelCall&)) {
  std::vector<KernelRow> rows;
  for (const CopyOp& row : kCopyOps) rows.push_back({"", row.op, name, prepare});
  return rows;
}

std::vector<KernelRow> copy_rows() { return copy_rows("reference", prepare_on_cpu); }

}  // namespace halfnote::cpu
