#include "kernels/cuda/elementwise/chain/plan.h"

#include <algorithm>

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/pointwise/shapes.h"
#include "kernels/cpu/support.h"

namespace halfnote::chain {

namespace {

using cpu::Runs;

std::string unfit_operands(const std::vector<Operand>& operands, size_t most) {
  if (operands.empty()) return "an operand is missing";
  if (operands.size() > most) return "more than " + std::to_string(most) + " operands";
  for (const Operand& operand : operands) {
    if (!operand.present()) return "an operand is missing";
    if (std::string why = unfit_input(operand.dtype, operand.size()); !why.empty()) return why;
  }
  return {};
}

std::string unfit_chain(const KernelCall& call) {
  if (std::string why = unfit_operands(call.inputs, kMaxInputs); !why.empty()) return why;
  if (std::string why = unfit_operands(call.outputs, kMaxOutputs); !why.empty()) return why;
  for (const Operand& output : call.outputs) {
    if (output.dtype == DType::kI64) return "an output of type i64";
  }
  return {};
}

std::vector<DType> types_of(const std::vector<Operand>& operands) {
  std::vector<DType> types;
  for (const Operand& operand : operands) types.push_back(operand.dtype);
  return types;
}

/// Does a group of `width` elements stay in one line of this input, and begin where an access of
/// its size may?
bool is_even(const Strided<kMaxInputs>& walk, size_t k, int width) {
  const int inner = walk.rank - 1;
  if (walk.dims[inner].value() % width != 0) return false;
  if (walk.strides[k][inner] == 0) return true;
  for (int d = 0; d < inner; ++d) {
    if (walk.strides[k][d] % width != 0) return false;
  }
  return true;
}

/// The inputs' walks; false if they have too many dims.
bool plan_walks(const KernelCall& call, const Shape& shape, Plan& plan) {
  std::vector<Shape> shapes;
  std::vector<size_t> inputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Operand& operand = call.inputs[i];
    const bool single = operand.size() == 1, whole = operand.size() == plan.arguments.count;
    if (operand.dtype == DType::kI64) {
      plan.chain.inputs.push_back({operand.dtype, Access::kSingle});
      continue;
    }
    plan.chain.inputs.push_back({operand.dtype, whole ? Access::kWhole : Access::kSingle});
    // The plan of a walk is also what finds inputs that do not broadcast.
    if (single || whole) {
      cpu::plan_broadcast({operand.shape}, shape);
      continue;
    }
    inputs.push_back(i);
    shapes.push_back(operand.shape);
  }
  if (inputs.empty()) return true;
  const Runs runs = cpu::plan_broadcast(shapes, shape);
  auto& walk = plan.arguments.walk;
  if (runs.dims.size() > static_cast<size_t>(walk.kDims)) return false;
  walk.rank = static_cast<int>(runs.dims.size());
  walk.count = runs.count;
  for (size_t d = 0; d < runs.dims.size(); ++d) {
    walk.dims[d] = Divisor(runs.dims[d]);
    for (size_t k = 0; k < inputs.size(); ++k) walk.strides[k][d] = runs.strides[k][d];
  }
  const int group = width(plan.chain);
  for (size_t k = 0; k < inputs.size(); ++k) {
    plan.chain.inputs[inputs[k]].access = runs.step(k) == 0 ? Access::kStay : Access::kAlong;
    plan.chain.even = plan.chain.even && is_even(walk, k, group);
  }
  return true;
}

/// Threads that fill a GPU.
constexpr int64_t kThreadsWanted = int64_t{1} << 17;

/// Threads for each row from the shapes alone: as many as it has groups, up to a warp; a block for
/// long ones, and for shorter ones where there are too few warps. What is longer yet is cut where
/// there are too few blocks, in pieces of which each thread has some groups.
void plan_row_sum(int width, Arguments& a) {
  constexpr int64_t kLong = 4 * kThreads, kLeastLong = kThreads, kLeastPiece = 4 * kThreads;
  const int64_t groups = (a.columns + width - 1) / width;
  while (a.row_bits < 5 && (1 << a.row_bits) < groups) ++a.row_bits;
  if (groups >= kLong || (groups >= kLeastLong && a.rows * 32 < kThreadsWanted))
    a.row_bits = kThreadBits;
  const int64_t wanted = kThreadsWanted / std::max<int64_t>(1, a.rows * kThreads);
  const int64_t pieces = std::max<int64_t>(1, std::min(wanted, groups / kLeastPiece));
  a.piece = (groups + pieces - 1) / pieces * width;
  a.blocks = a.columns == 0 ? 0 : (a.columns + a.piece - 1) / a.piece;
}

/// Blocks of rows from the shapes alone: enough for the threads of a GPU, but no block so short
/// that its partial sums are much beside what is summed.
void plan_sum(const cpu::pointwise::SummedShape& matrix, int width, Arguments& a) {
  constexpr int64_t kLeastRows = 16, kMostRows = 128;
  a.rows = matrix.rows;
  a.columns = matrix.columns;
  if (matrix.along_rows) return plan_row_sum(width, a);
  a.block_rows =
      std::clamp(matrix.rows * matrix.columns / width / kThreadsWanted, kLeastRows, kMostRows);
  a.blocks = (a.rows + a.block_rows - 1) / a.block_rows;
}

}  // namespace

std::string plan_chain(const KernelCall& call, Plan& plan) {
  if (std::string why = unfit_chain(call); !why.empty()) return why;
  plan = {};
  for (const Operand& output : call.outputs) plan.chain.outputs.push_back(output.dtype);
  plan.chain.program = parse_pointwise(cpu::attributes_of(call).get_string("program", ""),
                                       types_of(call.inputs), plan.chain.outputs);
  if (std::string why = cpu::pointwise::unfit_outputs(plan.chain.program, call); !why.empty())
    return why;
  const Shape shape = cpu::pointwise::elements_of(plan.chain.program, call);
  plan.arguments.count = element_count(shape);
  if (const auto sum = sum_of(plan.chain.program))
    plan_sum(cpu::pointwise::summed_shape(shape, *sum), width(plan.chain), plan.arguments);
  return plan_walks(call, shape, plan) ? "" : "more dims that do not merge than a walk has";
}

}  // namespace halfnote::chain
