// Convolutions by the library. For tensor cores operands are laid out channels-last in the
// workspace, the result is brought back from there, and a bias added on the way; what lies alike
// either way is not copied. In f32 all stay where they are.
#include <array>
#include <memory>

#include "kernels/cpu/contraction/conv_rows.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/libraries/dnn.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::ConvPlan;
using libraries::ConvLayout;
using libraries::Convolution;
using libraries::ConvOperands;
using libraries::ConvProblem;
using libraries::ConvResult;

constexpr int kTile = 32, kTileRows = 8;

/// (batches, rows, columns) to (batches, columns, rows), between float types up to f32; plus a bias
/// for each column.
struct Transposition {
  RealPointer from;
  RealOutput to;
  RealPointer bias;
  int64_t batches = 0, rows = 0, columns = 0;
};

__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_tiles(const __grid_constant__ Transposition p, int64_t tiles, Divisor across,
                    Divisor down) {
  HN_SHARED(float[kTile][kTile + 1], tile);
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int line = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t strip = across.quotient(t), batch = down.quotient(strip);
    const int64_t column = (t - strip * across.value()) * kTile;
    const int64_t row = (strip - batch * down.value()) * kTile;
    const int64_t first = batch * p.rows * p.columns;
    __syncthreads();  // the tile before is still read
    for (int r = line; r < kTile && row + r < p.rows; r += kTileRows) {
      if (column + lane >= p.columns) break;
      tile[r][lane] = p.from.load<float>(first + (row + r) * p.columns + column + lane);
    }
    __syncthreads();
    for (int c = line; c < kTile && column + c < p.columns; c += kTileRows) {
      if (row + lane >= p.rows) break;
      float value = tile[lane][c];
      if (p.bias.data != nullptr) value += p.bias.load<float>(column + c);
      p.to.write(first + (column + c) * p.rows + row + lane, value);
    }
  }
}

void transpose(Stream& stream, const Transposition& p) {
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.rows + kTile - 1) / kTile;
  const int64_t tiles = p.batches * across * down;
  launch(stream, transpose_tiles, static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
         kTile * kTileRows, 0, p, tiles, Divisor(across), Divisor(down));
}

/// A bias for each channel of an f32 result that lies plain.
struct AddBias {
  float* y;
  RealPointer bias;
  Divisor positions, channels;
  __device__ void operator()(int64_t i) const {
    y[i] += bias.load<float>(channels.remainder(positions.quotient(i)));
  }
};

/// One of x, w and y: `outer` times channels by inner positions.
struct Extents {
  int64_t outer = 0, channels = 0, inner = 0;

  int64_t size() const { return outer * channels * inner; }
  /// Is the order of channels and positions all the same?
  bool lies_alike() const { return channels == 1 || inner == 1; }
};

Extents extents_of(ConvResult tensor, const ConvPlan& p) {
  if (tensor == ConvResult::kX) return {p.batch, p.channels, p.in_size()};
  if (tensor == ConvResult::kW) return {p.filters, p.group_channels(), p.kernel_size()};
  return {p.batch, p.filters, p.out_size()};
}

/// Where a tensor is for the library: in the call's own buffer, or in the workspace.
struct Placed {
  Extents extents;
  DType own = DType::kUndefined, library = DType::kUndefined;
  size_t buffer = 0;  // input or output of the call
  bool copied = false;
  size_t room = 0;

  Placed(const ConvProblem& problem, ConvResult tensor, size_t index, DType dtype, bool adds_bias,
         cpu::WorkspacePlan& workspace)
      : extents(extents_of(tensor, problem.plan)),
        own(dtype),
        library(problem.type_of(tensor)),
        buffer(index),
        copied(own != library || (problem.layout == ConvLayout::kChannelsLast &&
                                  (adds_bias || !extents.lies_alike()))) {
    if (copied) room = workspace.add(static_cast<size_t>(extents.size()) * size_of(library));
  }
};

/// A convolution that is planned, and where its tensors are.
struct LibraryCall {
  ConvProblem problem;
  std::shared_ptr<const Convolution> convolution;
  std::vector<Placed> inputs;  // in the order of the call
  std::vector<Placed> output;
  std::array<ConvResult, 2> roles;
  DType bias = DType::kUndefined;
  size_t workspace = 0;  // of the library

  void run(const KernelBuffers& buffers) const {
    Stream& stream = stream_of(buffers);
    ConvOperands operands;
    for (size_t i = 0; i < 2; ++i) place(operands, roles[i]) = bring(buffers, inputs[i]);
    const Placed& result = output[0];
    void*& to = place(operands, problem.wanted);
    to = result.copied ? buffers.workspace + result.room : buffers.outputs[0];
    const auto room = reinterpret_cast<uintptr_t>(buffers.workspace) + workspace;
    constexpr uintptr_t kAlign = libraries::kDnnWorkspaceAlignment;
    operands.workspace = reinterpret_cast<void*>((room + kAlign - 1) / kAlign * kAlign);
    convolution->run(stream, operands);
    finish(buffers, to);
  }

 private:
  static void*& place(ConvOperands& operands, ConvResult tensor) {
    return tensor == ConvResult::kX   ? operands.x
           : tensor == ConvResult::kW ? operands.w
                                      : operands.y;
  }
  /// The result goes from where the library wrote it to where it belongs; the bias is added.
  void finish(const KernelBuffers& buffers, void* from) const {
    const Placed& result = output[0];
    RealPointer added;
    if (bias != DType::kUndefined) added = {buffers.inputs[2], bias};
    const Extents& e = result.extents;
    if (result.copied) {
      transpose(stream_of(buffers), {{from, result.library},
                                     {buffers.outputs[0], result.own},
                                     added,
                                     e.outer,
                                     e.inner,
                                     e.channels});
    } else if (added.data != nullptr) {
      for_each(stream_of(buffers), e.size(),
               AddBias{static_cast<float*>(from), added, Divisor(e.inner), Divisor(e.channels)});
    }
  }
  /// An operand where the library reads it.
  static void* bring(const KernelBuffers& buffers, const Placed& p) {
    if (!p.copied) return const_cast<std::byte*>(buffers.inputs[p.buffer]);
    std::byte* to = buffers.workspace + p.room;
    transpose(stream_of(buffers), {{buffers.inputs[p.buffer], p.own},
                                   {to, p.library},
                                   {},
                                   p.extents.outer,
                                   p.extents.channels,
                                   p.extents.inner});
    return to;
  }
};

/// The forms in which the library may compute a call, best first. In f32, where tensor cores would
/// round the operands, either layout will do. 16-bit operands whose sums are wanted in f32 may be
/// f32 for the library, where it has no other way: TF32 holds them exactly.
std::vector<ConvProblem> forms_of(const KernelCall& call, const ConvPlan& plan, ConvResult wanted) {
  const bool has_bias = call.domain.empty() && call.has_input(2);
  ConvProblem own{plan, wanted, ConvLayout::kChannelsLast, call.inputs[0].dtype,
                  call.outputs[0].dtype};
  // A bias is added to sums that are not rounded yet.
  if (has_bias || own.result != own.operands) own.result = DType::kF32;
  std::vector<ConvProblem> forms;
  if (is_16bit_float(own.operands)) {
    forms.push_back(own);
    own.operands = own.result = DType::kF32;
    own.exact_in_tf32 = true;
  } else if (call.outputs[0].dtype == DType::kF32) {
    forms.push_back(own);
    forms.back().layout = ConvLayout::kPlain;
  }
  forms.push_back(own);
  return forms;
}

Prepared library_kernel(const KernelCall& call, const ConvProblem& problem,
                        std::shared_ptr<const Convolution> convolution) {
  cpu::WorkspacePlan workspace;
  LibraryCall planned;
  planned.problem = problem;
  planned.roles =
      problem.wanted == ConvResult::kY
          ? std::array{ConvResult::kX, ConvResult::kW}
          : std::array{ConvResult::kY,
                       problem.wanted == ConvResult::kX ? ConvResult::kW : ConvResult::kX};
  if (call.domain.empty() && call.has_input(2)) planned.bias = call.inputs[2].dtype;
  const bool adds_bias = planned.bias != DType::kUndefined;
  for (size_t i = 0; i < 2; ++i) {
    planned.inputs.emplace_back(problem, planned.roles[i], i, call.inputs[i].dtype, false,
                                workspace);
  }
  planned.output.emplace_back(problem, problem.wanted, 0, call.outputs[0].dtype, adds_bias,
                              workspace);
  planned.workspace =
      workspace.add(convolution->workspace_bytes() + libraries::kDnnWorkspaceAlignment);
  planned.convolution = std::move(convolution);
  const size_t bytes = workspace.size();
  return make_kernel([planned](const KernelBuffers& buffers) { planned.run(buffers); }, bytes);
}

template <ConvResult kWanted>
Prepared prepare_library(const KernelCall& call, ConvPlan (*plan)(const KernelCall&)) {
  if (call.has_input(0)) {
    if (std::string why = cpu::conv_rank_refusal(call.inputs[0].shape); !why.empty())
      return Prepared::no(why);
  }
  const ConvPlan planned = plan(call);
  if (std::string why = cpu::conv_type_refusal(call); !why.empty()) return Prepared::no(why);
  for (const DType dtype : {call.inputs[0].dtype, call.outputs[0].dtype}) {
    if (dtype == DType::kF64) return Prepared::no("f64 is for checks: plain loops");
  }
  std::string why;
  for (const ConvProblem& problem : forms_of(call, planned, kWanted)) {
    std::string refusal;
    if (auto convolution = dnn().plan(problem, refusal))
      return library_kernel(call, problem, std::move(convolution));
    if (why.empty()) why = refusal;
  }
  return Prepared::no(why);
}

Prepared prepare_conv(const KernelCall& call) {
  return prepare_library<ConvResult::kY>(call, cpu::plan_conv);
}
Prepared prepare_transpose(const KernelCall& call) {
  return prepare_library<ConvResult::kX>(call, cpu::plan_conv_transpose);
}
Prepared prepare_grad_input(const KernelCall& call) {
  return prepare_library<ConvResult::kX>(call, cpu::plan_conv_grad_input);
}
Prepared prepare_grad_weight(const KernelCall& call) {
  return prepare_library<ConvResult::kW>(call, cpu::plan_conv_grad_weight);
}

}  // namespace

std::vector<KernelRow> conv_library_rows() {
  return {
      {"", "Conv", "dnn.conv", prepare_conv},
      {"", "ConvTranspose", "dnn.conv", prepare_transpose},
      {"ai.halfnote", "ConvGradInput", "dnn.conv", prepare_grad_input},
      {"ai.halfnote", "ConvGradWeight", "dnn.conv", prepare_grad_weight},
  };
}

}  // namespace halfnote::HN_CUDA
