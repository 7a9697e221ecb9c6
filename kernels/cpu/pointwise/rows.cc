// Elementwise ops as programs of one step or two, and whole programs (ai.halfnote.Pointwise).
#include "kernels/cpu/pointwise/rows.h"

#include "kernels/cpu/pointwise/shapes.h"
#include "kernels/cpu/pointwise/tile.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::pointwise {

namespace {

constexpr std::string_view kNoVectors = "the CPU has neither AVX-512 nor AVX2 with FMA";

Prepared program_kernel(const PointwiseProgram& program, const KernelCall& call,
                        const Loops& loops) {
  if (std::string why = unfit_outputs(program, call); !why.empty()) return Prepared::no(why);
  auto tile = std::make_shared<const TileProgram>(program, call, loops);
  if (tile->too_large()) return Prepared::no("too many values at once");
  const auto share = [tile](size_t input, size_t output) { return tile->can_share(input, output); };
  const auto body = [tile, threads = call.threads](const KernelBuffers& buffers) {
    tile->run(buffers, threads);
  };
  return make_kernel(body, tile->workspace_bytes(), share);
}

std::vector<DType> types_of(const std::vector<Operand>& operands) {
  std::vector<DType> types;
  for (const Operand& operand : operands) types.push_back(operand.dtype);
  return types;
}

Prepared prepare_op(const KernelCall& call) {
  if (vector_loops() == nullptr) return Prepared::no(std::string(kNoVectors));
  if (std::string why = TileProgram::refusal(call); !why.empty()) return Prepared::no(why);
  const PointwiseRow* row = find_pointwise(call.domain, call.op);
  if (row == nullptr || static_cast<size_t>(row->arity) != call.inputs.size() ||
      call.outputs.size() != 1) {
    return Prepared::no("another number of operands");
  }
  const DType result = call.outputs[0].dtype;
  if (std::string why = unfit_types(*row, types_of(call.inputs), result); !why.empty())
    return Prepared::no(why);
  PointwiseProgram program;
  program.steps.push_back(
      {row->code, {0, 1, 2}, pointwise_parameters(*row, attributes_of(call)), result});
  program.outputs = {0};
  return program_kernel(program, call, *vector_loops());
}

Prepared prepare_program(const KernelCall& call, const Loops& loops) {
  if (std::string why = TileProgram::refusal(call); !why.empty()) return Prepared::no(why);
  const std::string text = attributes_of(call).get_string("program", "");
  return program_kernel(parse_pointwise(text, types_of(call.inputs), types_of(call.outputs)), call,
                        loops);
}

Prepared prepare_fast_program(const KernelCall& call) {
  return vector_loops() == nullptr ? Prepared::no(std::string(kNoVectors))
                                   : prepare_program(call, *vector_loops());
}

Prepared prepare_reference_program(const KernelCall& call) {
  return prepare_program(call, reference_loops());
}

}  // namespace

std::vector<KernelRow> rows() {
  std::vector<KernelRow> all;
  for (const PointwiseRow& row : pointwise_rows()) {
    // A copy is a view, which costs nothing; the reference of Cast is vectorised itself.
    if (row.code == PointwiseOp::kIdentity || row.code == PointwiseOp::kCast) continue;
    // fast.dropout, fast.reduce_sum
    if (row.types == PointwiseTypes::kDraw || row.types == PointwiseTypes::kSum) continue;
    all.push_back({row.domain, row.op, "fast.pointwise", prepare_op});
  }
  all.push_back({"ai.halfnote", "Pointwise", "fast.pointwise", prepare_fast_program});
  all.push_back({"ai.halfnote", "Pointwise", "reference", prepare_reference_program});
  return all;
}

}  // namespace halfnote::cpu::pointwise
