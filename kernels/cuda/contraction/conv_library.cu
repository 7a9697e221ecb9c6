// Convolutions by the library. Tensor cores take channels last: what lies so is read and written
// where it is, what does not is laid out so in the workspace, or brought back from there. What has
// no whole vectors of channels goes by way of the workspace too. A bias is added by the library
// where it is of the result's type, else on the way back. In f32 all stay where they are. Depthwise
// ones may be ours (conv_depthwise.h): with a bias they are, else where --tune finds them faster.
#include <array>
#include <memory>

#include "kernels/cpu/contraction/conv_rows.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/transpose.h"
#include "kernels/cuda/contraction/conv_depthwise.h"
#include "kernels/cuda/contraction/conv_product.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/libraries/blas.h"
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

/// Lines of channels to longer or shorter ones; plus a bias for each channel. What is added is 0.
struct CopyLine {
  RealPointer from;
  RealOutput to;
  RealPointer bias;
  int64_t lines = 0, channels = 0, from_line = 0;
  Divisor to_line;
  __device__ void operator()(int64_t i) const {
    const int64_t line = to_line.quotient(i), c = i - line * to_line.value();
    float value = 0;
    if (line < lines && c < channels) value = from.load<float>(line * from_line + c);
    if (bias.data != nullptr) value += bias.load<float>(c);
    to.write(i, value);
  }
};

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
  friend bool operator==(const Extents&, const Extents&) = default;
};

Extents extents_of(ConvResult tensor, const ConvPlan& p) {
  if (tensor == ConvResult::kX) return {p.batch, p.channels, p.in_size()};
  if (tensor == ConvResult::kW) return {p.filters, p.group_channels(), p.kernel_size()};
  return {p.batch, p.filters, p.out_size()};
}

/// The kernels of tensor cores read 8 channels of 16 bits at once (16 bytes). One channel stays
/// alone, as the pass pad-to-8 leaves it, and so do groups, whose channels would be apart.
ConvPlan with_whole_vectors(ConvPlan plan) {
  if (plan.groups != 1) return plan;
  for (int64_t* channels : {&plan.channels, &plan.filters}) {
    if (*channels > 1) *channels = (*channels + 7) / 8 * 8;
  }
  return plan;
}

/// Where a tensor is for the library: in the call's own buffer, or in the workspace.
struct Placed {
  Extents own_extents, extents;  // the call's, and the library's
  DType own = DType::kUndefined, library = DType::kUndefined;
  size_t buffer = 0;  // input or output of the call
  bool last = false;  // does it lie channels last in the call?
  bool copied = false;
  size_t room = 0;

  Placed(const ConvProblem& problem, const ConvPlan& plan, ConvResult tensor, size_t index,
         const Operand& operand, bool adds_bias, cpu::WorkspacePlan& workspace)
      : own_extents(extents_of(tensor, plan)),
        extents(extents_of(tensor, problem.plan)),
        own(operand.dtype),
        library(problem.type_of(tensor)),
        buffer(index),
        last(is_channels_last(operand) || own_extents.lies_alike()),
        copied(own != library || !(own_extents == extents) ||
               (problem.layout == ConvLayout::kChannelsLast && (adds_bias || !last))) {
    if (copied) room = workspace.add(static_cast<size_t>(extents.size()) * size_of(library));
  }

  /// From the call's buffer to the library's.
  void bring(Stream& stream, const std::byte* from, std::byte* to) const {
    const Extents &e = own_extents, &padded = extents;
    if (last) {
      for_each(stream, padded.size(),
               CopyLine{{from, own},
                        {to, library},
                        {},
                        e.outer * e.inner,
                        e.channels,
                        e.channels,
                        Divisor(padded.channels)});
      return;
    }
    transpose(stream, {{from, own},
                       {to, library},
                       {},
                       padded.outer,
                       e.channels,
                       e.inner,
                       e.inner,
                       padded.channels,
                       e.outer});
  }
  /// And back, with a bias added.
  void take(Stream& stream, const std::byte* from, std::byte* to, const RealPointer& bias) const {
    const Extents &e = own_extents, &padded = extents;
    if (last) {
      for_each(stream, e.size(),
               CopyLine{{from, library},
                        {to, own},
                        bias,
                        e.outer * e.inner,
                        e.channels,
                        padded.channels,
                        Divisor(e.channels)});
      return;
    }
    transpose(stream, {{from, library},
                       {to, own},
                       bias,
                       e.outer,
                       e.inner,
                       e.channels,
                       padded.channels,
                       e.inner,
                       e.outer});
  }
};

/// A convolution that is planned, and where its tensors are.
struct LibraryCall {
  ConvProblem problem;
  std::shared_ptr<const Convolution> convolution;
  std::vector<Placed> inputs;  // in the order of the call
  std::vector<Placed> output;
  std::array<ConvResult, 2> roles;
  DType bias = DType::kUndefined;  // that the library leaves to us
  size_t workspace = 0;            // of the library

  void run(const KernelBuffers& buffers) const {
    Stream& stream = stream_of(buffers);
    ConvOperands operands;
    for (size_t i = 0; i < 2; ++i) place(operands, roles[i]) = bring(buffers, inputs[i]);
    const Placed& result = output[0];
    void*& to = place(operands, problem.wanted);
    to = result.copied ? buffers.workspace + result.room : buffers.outputs[0];
    const auto room = reinterpret_cast<uintptr_t>(buffers.workspace) + workspace;
    constexpr uintptr_t kAlign = libraries::kDnnWorkspaceAlignment;
    if (problem.has_bias()) operands.bias = buffers.inputs[2];
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
    if (result.copied) {
      result.take(stream_of(buffers), static_cast<const std::byte*>(from), buffers.outputs[0],
                  added);
    } else if (added.data != nullptr) {
      const Extents& e = result.extents;
      for_each(stream_of(buffers), e.size(),
               AddBias{static_cast<float*>(from), added, Divisor(e.inner), Divisor(e.channels)});
    }
  }
  /// An operand where the library reads it.
  static void* bring(const KernelBuffers& buffers, const Placed& p) {
    if (!p.copied) return const_cast<std::byte*>(buffers.inputs[p.buffer]);
    p.bring(stream_of(buffers), buffers.inputs[p.buffer], buffers.workspace + p.room);
    return buffers.workspace + p.room;
  }
};

/// Is the bias of a call added by what computes the sums? In 16 bits the library has kernels that
/// do; one that is as long as the result's channels are for the library. Depthwise those know
/// nothing of single channels, and kernels of ours do.
bool is_bias_added_to_sums(const KernelCall& call, const ConvPlan& plan, const ConvProblem& form) {
  const DType dtype = form.result;
  const bool as_long =
      extents_of(form.wanted, plan).channels == extents_of(form.wanted, form.plan).channels;
  const bool depthwise = plan.groups > 1 && plan.group_channels() == 1;
  return is_16bit_float(dtype) && form.operands == dtype && call.inputs[2].dtype == dtype &&
         as_long && (!depthwise || is_depthwise(form));
}

/// The forms in which the library may compute a call, best first. In f32, where tensor cores would
/// round the operands, either layout will do. 16-bit operands whose sums are wanted in f32 may be
/// f32 for the library, where it has no other way: TF32 holds them exactly.
std::vector<ConvProblem> forms_of(const KernelCall& call, const ConvPlan& plan, ConvResult wanted) {
  const bool has_bias = call.domain.empty() && call.has_input(2);
  ConvProblem own{is_16bit_float(call.inputs[0].dtype) ? with_whole_vectors(plan) : plan, wanted,
                  ConvLayout::kChannelsLast, call.inputs[0].dtype, call.outputs[0].dtype};
  std::vector<ConvProblem> forms;
  // A bias is added to sums that are not rounded yet.
  if (has_bias && is_bias_added_to_sums(call, plan, own)) {
    forms.push_back(own);
    forms.back().bias = own.result;
  }
  if (has_bias || own.result != own.operands) own.result = DType::kF32;
  if (is_16bit_float(own.operands)) {
    forms.push_back(own);
    own.operands = own.result = DType::kF32;
    own.tf32 = true;
  } else if (call.outputs[0].dtype == DType::kF32) {
    forms.push_back(own);
    forms.back().layout = ConvLayout::kPlain;
    forms.back().tf32 = call.tf32;
    own.tf32 = call.tf32;
  }
  forms.push_back(own);
  return forms;
}

/// What inputs 0 and 1 of a call are.
std::array<ConvResult, 2> roles_of(ConvResult wanted) {
  if (wanted == ConvResult::kY) return {ConvResult::kX, ConvResult::kW};
  return {ConvResult::kY, wanted == ConvResult::kX ? ConvResult::kW : ConvResult::kX};
}

Prepared library_kernel(const KernelCall& call, const ConvPlan& plan, const ConvProblem& problem,
                        std::shared_ptr<const Convolution> convolution) {
  cpu::WorkspacePlan workspace;
  LibraryCall planned;
  planned.problem = problem;
  planned.roles = roles_of(problem.wanted);
  if (call.domain.empty() && call.has_input(2) && !problem.has_bias())
    planned.bias = call.inputs[2].dtype;
  const bool adds_bias = planned.bias != DType::kUndefined;
  for (size_t i = 0; i < 2; ++i) {
    planned.inputs.emplace_back(problem, plan, planned.roles[i], i, call.inputs[i], false,
                                workspace);
  }
  planned.output.emplace_back(problem, plan, problem.wanted, 0, call.outputs[0], adds_bias,
                              workspace);
  planned.workspace =
      workspace.add(convolution->workspace_bytes() + libraries::kDnnWorkspaceAlignment);
  planned.convolution = std::move(convolution);
  const size_t bytes = workspace.size();
  return make_kernel([planned](const KernelBuffers& buffers) { planned.run(buffers); }, bytes);
}

/// An algorithm is an engine of one of the forms, or a product or kernels of ours in its place:
/// `0/eng38_k2=5`, `0/own:depthwise`, with a bias that is added to the sums `bias/eng41_k2=5`.
std::string form_name(const std::vector<ConvProblem>& forms, size_t form) {
  if (forms[form].has_bias()) return "bias";
  return std::to_string(form - (forms.front().has_bias() ? 1 : 0));
}

/// Do kernels of ours compute it, without a choice?
bool is_ours(const ConvProblem& form) { return form.has_bias() && is_depthwise(form); }

/// Those of the first form that has any, and in f32, where both layouts will do, of all.
std::vector<std::string> algorithms_of(const KernelCall& call, const ConvPlan& plan,
                                       ConvResult wanted) {
  std::vector<std::string> names;
  const std::vector<ConvProblem> forms = forms_of(call, plan, wanted);
  for (size_t i = 0; i < forms.size(); ++i) {
    const std::string form = form_name(forms, i) + "/";
    if (is_depthwise(forms[i])) names.push_back(form + std::string(kDepthwise));
    if (is_ours(forms[i])) break;
    for (const std::string& engine : dnn().engines(forms[i])) names.push_back(form + engine);
    if (names.empty()) continue;
    for (const std::string& product : conv_product_algorithms(forms[i]))
      names.push_back(form + product);
    if (!names.empty() && is_16bit_float(call.inputs[0].dtype)) break;
  }
  return names;
}

Prepared prepare_algorithm(const KernelCall& call, const ConvPlan& plan, ConvResult wanted) {
  const std::vector<ConvProblem> forms = forms_of(call, plan, wanted);
  const size_t slash = call.algorithm.find('/');
  for (size_t i = 0; i < forms.size() && slash != std::string_view::npos; ++i) {
    if (call.algorithm.substr(0, slash) != form_name(forms, i)) continue;
    const std::string_view name = call.algorithm.substr(slash + 1);
    auto convolution = name == kDepthwise         ? plan_depthwise(forms[i])
                       : names_conv_product(name) ? plan_conv_product(forms[i], name)
                                                  : dnn().plan_by(forms[i], name);
    return library_kernel(call, plan, forms[i], std::move(convolution));
  }
  libraries::refuse_algorithm("cuDNN", call.algorithm, "no engine's name");
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
  if (!call.algorithm.empty()) return prepare_algorithm(call, planned, kWanted);
  std::string why;
  for (const ConvProblem& problem : forms_of(call, planned, kWanted)) {
    std::string refusal;
    if (auto convolution =
            is_ours(problem) ? plan_depthwise(problem) : dnn().plan(problem, refusal))
      return library_kernel(call, planned, problem, std::move(convolution));
    if (why.empty()) why = refusal;
  }
  return Prepared::no(why);
}

Prepared prepare_library_conv(const KernelCall& call) {
  return prepare_library<ConvResult::kY>(call, cpu::plan_conv);
}
Prepared prepare_library_transpose(const KernelCall& call) {
  return prepare_library<ConvResult::kX>(call, cpu::plan_conv_transpose);
}
Prepared prepare_library_grad_input(const KernelCall& call) {
  return prepare_library<ConvResult::kX>(call, cpu::plan_conv_grad_input);
}
Prepared prepare_library_grad_weight(const KernelCall& call) {
  return prepare_library<ConvResult::kW>(call, cpu::plan_conv_grad_weight);
}

template <ConvResult kWanted, ConvPlan (*kPlan)(const KernelCall&)>
std::vector<std::string> conv_algorithms(const KernelCall& call) {
  return algorithms_of(call, kPlan(call), kWanted);
}

/// Each operand as it comes: what lies channels last is not transposed. What gets more channels is
/// copied in any case. The gradient of a weight stays plain, as its optimizer reads it.
template <ConvResult kWanted>
BlockedOperands channels_last_operands(const KernelCall& call, const ConvPlan& plan) {
  BlockedOperands operands;
  if (!is_16bit_float(call.inputs[0].dtype)) return operands;
  const ConvPlan whole = with_whole_vectors(plan);
  const auto fits = [&](const Operand& operand, ConvResult tensor) {
    return fits_channels_last(operand) && extents_of(tensor, plan) == extents_of(tensor, whole);
  };
  for (uint32_t i = 0; i < 2; ++i) {
    if (fits(call.inputs[i], roles_of(kWanted)[i])) operands.inputs |= 1u << i;
  }
  if (kWanted != ConvResult::kW && fits(call.outputs[0], kWanted)) operands.outputs = 0b1;
  operands.preferred = operands.any();
  return operands;
}

BlockedOperands operands_of_conv(const KernelCall& call) {
  return channels_last_operands<ConvResult::kY>(call, cpu::plan_conv(call));
}
BlockedOperands operands_of_transpose(const KernelCall& call) {
  return channels_last_operands<ConvResult::kX>(call, cpu::plan_conv_transpose(call));
}
BlockedOperands operands_of_grad_input(const KernelCall& call) {
  return channels_last_operands<ConvResult::kX>(call, cpu::plan_conv_grad_input(call));
}
BlockedOperands operands_of_grad_weight(const KernelCall& call) {
  return channels_last_operands<ConvResult::kW>(call, cpu::plan_conv_grad_weight(call));
}

}  // namespace

/// The plain rows see how the operands lie.
std::vector<BlockedRow> channels_last_conv_rows() {
  constexpr std::string_view kPlain = "dnn.conv", kName = "channels_last.conv";
  return {
      {{"", "Conv", kName, prepare_library_conv}, kPlain, operands_of_conv},
      {{"", "ConvTranspose", kName, prepare_library_transpose}, kPlain, operands_of_transpose},
      {{"ai.halfnote", "ConvGradInput", kName, prepare_library_grad_input},
       kPlain,
       operands_of_grad_input},
      {{"ai.halfnote", "ConvGradWeight", kName, prepare_library_grad_weight},
       kPlain,
       operands_of_grad_weight},
  };
}

std::vector<KernelRow> conv_library_rows() {
  std::vector<KernelRow> rows = {
      {"", "Conv", "dnn.conv", prepare_library_conv},
      {"", "ConvTranspose", "dnn.conv", prepare_library_transpose},
      {"ai.halfnote", "ConvGradInput", "dnn.conv", prepare_library_grad_input},
      {"ai.halfnote", "ConvGradWeight", "dnn.conv", prepare_library_grad_weight},
  };
  rows[0].algorithms = conv_algorithms<ConvResult::kY, cpu::plan_conv>;
  rows[1].algorithms = conv_algorithms<ConvResult::kX, cpu::plan_conv_transpose>;
  rows[2].algorithms = conv_algorithms<ConvResult::kX, cpu::plan_conv_grad_input>;
  rows[3].algorithms = conv_algorithms<ConvResult::kW, cpu::plan_conv_grad_weight>;
  return rows;
}

}  // namespace halfnote::HN_CUDA
