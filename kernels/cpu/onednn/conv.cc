// Convolutions on oneDNN: forward, and the gradients for input and weights. The library chooses its
// blocked or channels-last layouts, and plain operands are reordered in and out: on plain
// (N, C, H, W) data it falls back to im2col, which takes about twice the time of its own layouts
// with the reorders counted. 1×1 convolutions without padding are matrix products on plain data
// too, and stay as they are where that was measured to be faster (stays_plain). Operands that the
// plan keeps in channel blocks are taken as they lie.
#include <numeric>

#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/onednn/parts.h"
#include "kernels/cpu/onednn/program.h"

namespace halfnote::cpu::onednn {

namespace {

/// The tensors x, w, y of a convolution in the types they are computed in, as they lie and as the
/// library may want.
struct ConvDescs {
  Memory::desc x, w, y, bias;                 // x and y plain or in channel blocks, the rest plain
  Memory::desc x_wanted, w_wanted, y_wanted;  // `any`, or the same
  Memory::dims strides, dilations, pad_begin, pad_end;
};

struct ConvTypes {
  DType x, w, y;
};

struct ConvLayouts {
  bool x_blocked = false, y_blocked = false;
};

Shape spatial(const ConvPlan& plan, const ConvPlan::Dims& dims) {
  return Shape(dims.end() - static_cast<int64_t>(plan.spatial), dims.end());
}

Shape tensor_shape(const ConvPlan& plan, int64_t channels, const ConvPlan::Dims& dims) {
  Shape shape = spatial(plan, dims);
  shape.insert(shape.begin(), {plan.batch, channels});
  return shape;
}

Shape weight_shape(const ConvPlan& plan) {
  Shape shape = spatial(plan, plan.kernel);
  shape.insert(shape.begin(), {plan.group_filters(), plan.group_channels()});
  if (plan.groups > 1) shape.insert(shape.begin(), plan.groups);
  return shape;
}

enum class Direction { kForward, kGradInput, kGradWeight };

/// The cost table of 1×1 convolutions without padding: plain data, or the library's layouts with
/// reorders. GFLOP/s of one core of an AMD Zen 5, plain / reordered, of the shapes of ResNet-50:
///
///   C -> F @ pixels, stride     forward f32, bf16     dX f32, bf16         dW f32, bf16
///   64 -> 256 @ 56×56           233/118, 271/175      230/100, 247/175     162/111, 264/118
///   256 -> 1024 @ 14×14         219/196, 376/343      210/178, 332/327     169/176, 372/288
///   1024 -> 256 @ 14×14         209/183, 375/337      172/199, 331/331     151/169, 399/244
///   512 -> 2048 @ 7×7           164/188, 278/367      155/179, 218/338     188/178, 390/265
///   2048 -> 512 @ 7×7           159/193, 277/358      112/175, 174/331     163/126, 413/166
///   256 -> 512 @ 56×56, 2       129/144, 221/242      183/93,  286/144     173/131, 321/166
///   512 -> 1024 @ 28×28, 2      136/169, 232/294      180/118, 282/189     180/151, 367/236
bool stays_plain(const ConvPlan& plan, Direction direction) {
  constexpr ConvPlan::Dims kOnes{1, 1, 1};
  constexpr int64_t kFewPixels = 100, kSomePixels = 400;
  if (plan.groups != 1 || plan.kernel != kOnes) return false;
  int64_t pixels = 1;
  for (size_t d = 0; d < 3; ++d) {
    if (plan.out[d] != (plan.in[d] + plan.stride[d] - 1) / plan.stride[d]) return false;  // padded
    pixels *= plan.out[d];
  }
  if (plan.stride != kOnes) return direction != Direction::kForward && plan.spatial == 2;
  if (direction == Direction::kGradWeight) return true;
  if (direction == Direction::kForward) return pixels >= kFewPixels;
  return pixels >= (plan.channels > plan.filters ? kSomePixels : kFewPixels);
}

/// An operand as it lies.
Memory::desc lying(const Shape& shape, DType type, bool blocked) {
  using Tag = Memory::format_tag;
  if (!blocked) return plain(shape, type);
  const Tag tag = shape.size() == 3   ? Tag::nCw16c
                  : shape.size() == 4 ? Tag::nChw16c
                                      : Tag::nCdhw16c;
  return {shape, data_type(type), tag};
}

/// What the library is asked for. A plain operand beside a blocked one is reordered as the library
/// likes.
///
/// GFLOP/s of one core of an AMD Zen 5, without reorders, in channel blocks / channels last /
/// plain:
///
///   C -> F @ pixels, kernel    type  forward      dX           dW
///   64 -> 64 @ 56×56, 3×3      f32   223/228/120  213/225/106  205/176/87
///                              bf16  493/466/142  463/461/143  387/361/159
///   256 -> 256 @ 14×14, 3×3    f32   218/254/173  184/246/150  213/200/169
///                              bf16  477/487/187  437/492/242  397/388/285
///   512 -> 512 @ 7×7, 3×3      f32   186/238/170  219/229/130  133/137/163
///                              bf16  513/481/210  335/447/175  326/296/255
///   64 -> 256 @ 56×56, 1×1     f32   200/169/230  179/142/211  155/85/149
///                              bf16  390/386/322  363/333/307  191/206/271
///   256 -> 1024 @ 14×14, 1×1   f32   233/214/203  192/216/183  200/163/153
///                              bf16  486/456/385  461/440/348  379/327/386
///   512 -> 1024 @ 28×28, 1×1   f32   228/193/140  224/166/185  201/157/193
///    (stride 2)                bf16  454/408/217  444/343/256  276/315/380
Memory::desc asked_for(const Shape& shape, DType type, bool blocked) {
  return blocked ? lying(shape, type, true) : any_layout(shape, type);
}

/// A stride over a single output is any that leaves no room for a second one; the library reads
/// behind the end of a tensor by the larger ones.
ConvPlan::Dims strides_that_matter(const ConvPlan& plan) {
  ConvPlan::Dims strides = plan.stride;
  for (size_t d = 0; d < strides.size(); ++d) {
    if (plan.out[d] != 1) continue;
    const int64_t reach = (plan.kernel[d] - 1) * plan.dilation[d] + 1;
    const int64_t places = plan.in[d] + plan.pad_begin[d] + plan.pad_end[d] - reach + 1;
    strides[d] = std::min(strides[d], std::max<int64_t>(1, places));
  }
  return strides;
}

ConvDescs describe(const ConvPlan& plan, const ConvTypes& types, Direction direction,
                   const ConvLayouts& layouts = {}) {
  const Shape x = tensor_shape(plan, plan.channels, plan.in);
  const Shape y = tensor_shape(plan, plan.filters, plan.out);
  const Shape w = weight_shape(plan);
  ConvDescs descs;
  descs.x = lying(x, types.x, layouts.x_blocked);
  descs.w = plain(w, types.w);
  descs.y = lying(y, types.y, layouts.y_blocked);
  const bool stays = !layouts.x_blocked && !layouts.y_blocked && stays_plain(plan, direction);
  descs.x_wanted = stays ? descs.x : asked_for(x, types.x, layouts.x_blocked);
  descs.w_wanted = stays ? descs.w : any_layout(w, types.w);
  descs.y_wanted = stays ? descs.y : asked_for(y, types.y, layouts.y_blocked);
  descs.strides = spatial(plan, strides_that_matter(plan));
  descs.dilations = spatial(plan, plan.dilation);
  for (int64_t& dilation : descs.dilations) --dilation;  // the library counts the gaps
  descs.pad_begin = spatial(plan, plan.pad_begin);
  descs.pad_end = spatial(plan, plan.pad_end);
  return descs;
}

dnnl::convolution_forward::primitive_desc forward_descriptor(const ConvDescs& d) {
  return {engine(),
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          d.x_wanted,
          d.w_wanted,
          d.bias,
          d.y_wanted,
          d.strides,
          d.dilations,
          d.pad_begin,
          d.pad_end,
          attributes()};
}

constexpr const char* kOnlyPlainLoop = "oneDNN has only a plain loop for this call";

Prepared build_forward(const KernelCall& call, const ConvPlan& plan, Path path) {
  const DType compute = compute_type(path, call.inputs[0].dtype);
  ConvDescs descs =
      describe(plan, {compute, compute, result_type(compute, call.outputs[0].dtype)},
               Direction::kForward, {is_blocked(call.inputs[0]), is_blocked(call.outputs[0])});
  if (call.has_input(2)) descs.bias = plain({plan.filters}, compute);
  const auto descriptor = forward_descriptor(descs);
  if (is_plain_loop(descriptor)) return Prepared::no(kOnlyPlainLoop);
  ProgramBuilder program(call);
  const Memory x = program.in_layout(program.input(0, descs.x), descriptor.src_desc());
  const Memory w = program.in_layout(program.input(1, descs.w), descriptor.weights_desc());
  const Memory y = program.out_layout(program.output(0, descs.y), descriptor.dst_desc());
  ProgramBuilder::Arguments arguments{{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (call.has_input(2)) arguments.emplace(DNNL_ARG_BIAS, program.input(2, descs.bias));
  program.execute(dnnl::convolution_forward(descriptor), descriptor, std::move(arguments));
  return program.finish();
}

/// Input 0 is dY, input 1 the weights, output 0 is dX.
Prepared build_grad_input(const KernelCall& call, const ConvPlan& plan, Path path) {
  const DType compute = compute_type(path, call.inputs[0].dtype);
  const DType result = result_type(compute, call.outputs[0].dtype);
  const ConvLayouts layouts{is_blocked(call.outputs[0]), is_blocked(call.inputs[0])};
  const auto hint = forward_descriptor(
      describe(plan, {compute, compute, compute}, Direction::kGradInput, layouts));
  const ConvDescs d = describe(plan, {result, compute, compute}, Direction::kGradInput, layouts);
  const dnnl::convolution_backward_data::primitive_desc descriptor(
      engine(), dnnl::algorithm::convolution_direct, d.x_wanted, d.w_wanted, d.y_wanted, d.strides,
      d.dilations, d.pad_begin, d.pad_end, hint, attributes());
  if (is_plain_loop(descriptor)) return Prepared::no(kOnlyPlainLoop);
  ProgramBuilder program(call);
  const Memory dy = program.in_layout(program.input(0, d.y), descriptor.diff_dst_desc());
  const Memory w = program.in_layout(program.input(1, d.w), descriptor.weights_desc());
  const Memory dx = program.out_layout(program.output(0, d.x), descriptor.diff_src_desc());
  program.execute(dnnl::convolution_backward_data(descriptor), descriptor,
                  {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}});
  return program.finish();
}

/// Is there a window all of whose taps lie in the padding along dim d?
bool has_empty_window(const ConvPlan& plan, size_t d) {
  const int64_t reach = (plan.kernel[d] - 1) * plan.dilation[d] + 1;
  const bool may = plan.pad_begin[d] >= reach || plan.pad_end[d] >= reach ||
                   plan.dilation[d] > plan.in[d];  // then taps may lie on either side
  for (int64_t o = 0; may && o < plan.out[d]; ++o) {
    bool meets = false;
    for (int64_t k = 0; k < plan.kernel[d] && !meets; ++k) {
      const int64_t at = o * plan.stride[d] + plan.offset(d, k);
      meets = at >= 0 && at < plan.in[d];
    }
    if (!meets) return true;
  }
  return false;
}

/// oneDNN 3.2 ends with a signal where it plans such windows for AMX.
bool has_empty_windows(const ConvPlan& plan) {
  return has_empty_window(plan, 0) || has_empty_window(plan, 1) || has_empty_window(plan, 2);
}

/// The convolution with stride 1 that a ConvTranspose is: of its x, which is the y of the plan,
/// with its elements as far apart as the strides say.
ConvPlan mirrored(ConvPlan plan) {
  std::swap(plan.in, plan.out);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t reach = (plan.kernel[i] - 1) * plan.dilation[i] + 1;
    plan.in[i] = (plan.in[i] - 1) * plan.stride[i] + 1;
    plan.stride[i] = 1;
    plan.pad_begin[i] = reach - 1 - plan.pad_begin[i];
    plan.pad_end[i] = plan.out[i] - 1 + reach - plan.in[i] - plan.pad_begin[i];
  }
  return plan;
}

/// ConvTranspose on the library's deconvolution. Its x is the y of the plan, and its weights have
/// the two channel dims swapped, which is a matter of strides.
Prepared build_transpose(const KernelCall& call, const ConvPlan& plan, Path path) {
  const DType compute = compute_type(path, call.inputs[0].dtype);
  const ConvDescs d = describe(
      plan, {result_type(compute, call.outputs[0].dtype), compute, compute}, Direction::kForward);
  std::vector<int> swapped(d.w.get_dims().size());
  std::iota(swapped.begin(), swapped.end(), 0);
  std::swap(swapped[plan.groups > 1 ? 1 : 0], swapped[plan.groups > 1 ? 2 : 1]);
  const Memory::desc w = d.w.permute_axes(swapped);
  const Memory::desc bias = call.has_input(2) ? plain({plan.channels}, compute) : Memory::desc();
  const Memory::desc w_wanted(w.get_dims(), w.get_data_type(), Memory::format_tag::any);
  Memory::dims pad_end;  // what is missing for the output's size, negative with output_padding
  for (size_t i = 3 - plan.spatial; i < 3; ++i) {
    const int64_t reach = (plan.kernel[i] - 1) * plan.dilation[i] + 1;
    pad_end.push_back((plan.out[i] - 1) * plan.stride[i] + reach - plan.in[i] - plan.pad_begin[i]);
    if (-pad_end.back() >= plan.stride[i]) return Prepared::no("an output that no input reaches");
  }
  if (compute != DType::kF32 && has_empty_windows(mirrored(plan)))  // AMX has no f32
    return Prepared::no("an output that no input reaches");
  const dnnl::deconvolution_forward::primitive_desc descriptor(
      engine(), dnnl::prop_kind::forward_training, dnnl::algorithm::deconvolution_direct,
      d.y_wanted, w_wanted, bias, d.x_wanted, d.strides, d.dilations, d.pad_begin, pad_end,
      attributes());
  if (is_plain_loop(descriptor)) return Prepared::no(kOnlyPlainLoop);
  ProgramBuilder program(call);
  const Memory x = program.in_layout(program.input(0, d.y), descriptor.src_desc());
  const Memory weights = program.in_layout(program.input(1, w), descriptor.weights_desc());
  const Memory y = program.out_layout(program.output(0, d.x), descriptor.dst_desc());
  ProgramBuilder::Arguments arguments{
      {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}};
  if (call.has_input(2)) arguments.emplace(DNNL_ARG_BIAS, program.input(2, bias));
  program.execute(dnnl::deconvolution_forward(descriptor), descriptor, std::move(arguments));
  return program.finish();
}

using WeightDescriptor = dnnl::convolution_backward_weights::primitive_desc;

WeightDescriptor weight_descriptor(const ConvDescs& d,
                                   const dnnl::convolution_forward::primitive_desc& hint) {
  return {engine(),    dnnl::algorithm::convolution_direct,
          d.x_wanted,  d.w_wanted,
          d.y_wanted,  d.strides,
          d.dilations, d.pad_begin,
          d.pad_end,   hint,
          attributes()};
}

/// The gradient for the weights of a convolution with `merged` groups in the place of one.
struct WeightProblem {
  ConvDescs descs;
  WeightDescriptor descriptor;
  int64_t merged = 1;

  WeightProblem(ConvPlan plan, const ConvTypes& types, const ConvLayouts& layouts, int64_t m)
      : merged(m) {
    plan.groups /= m;
    descs = describe(plan, types, Direction::kGradWeight, layouts);
    const ConvTypes same{types.x, types.x, types.x};
    descriptor = weight_descriptor(
        descs, forward_descriptor(describe(plan, same, Direction::kGradWeight, layouts)));
  }

  /// Does the library have a kernel of its own for it, and not only products of gathered windows?
  bool has_kernel() const { return !is_plain_loop(descriptor) && !is_gemm(descriptor); }
};

/// Groups whose channels fill no block of the library are gathered and multiplied one by one, which
/// is slow. Some of them taken as one group fill a block: the products of channels that do not
/// belong together are computed too, and left out. Multiply-adds/ns of one core of an AMD Zen 5:
///
///   channels, of a group @ pixels, kernel   f32 as they are / merged   bf16
///   128, 4 @ 32×32, 3×3                      4.9 / 17.1                4.4 / 17.4
///   128, 8 @ 32×32, 3×3                     35.9                       8.2 / 33.1
///   128, 4 @ 56×56, 3×3                      5.5 / 14.2                5.6 / 16.8
///   256, 8 @ 28×28, 3×3, stride 2           22.4                       9.6 / 24.0
///   96, 24 @ 28×28, 3×3                     43.3                      22.9 / 48.4
///   64, 4 @ 200, 5                           5.5 / 16.1                5.1 / 16.8
WeightProblem weight_problem(const ConvPlan& plan, const ConvTypes& types,
                             const ConvLayouts& layouts) {
  WeightProblem plain(plan, types, layouts, 1);
  const int64_t most = types.x == DType::kF32 ? 32 : 64;  // channels, up to which it pays
  if (plan.groups == 1 || plain.has_kernel()) return plain;
  for (int64_t m = 2; m <= plan.groups; ++m) {
    if (std::max(plan.group_channels(), plan.group_filters()) * m > most) break;
    if (plan.groups % m != 0) continue;
    if (WeightProblem merged(plan, types, layouts, m); merged.has_kernel()) return merged;
  }
  return plain;
}

/// Room for the weights of merged groups; what belongs to single ones goes to output 0 at the end.
Memory merged_output(ProgramBuilder& program, const KernelCall& call, const ConvPlan& plan,
                     const WeightProblem& problem) {
  const Memory whole = program.temporary(problem.descs.w);
  const int64_t merged = problem.merged, filters = plan.group_filters();
  const int64_t row = plan.group_channels() * plan.kernel_size();
  program.host_last(
      [=, all = plan.filters, type = call.outputs[0].dtype](const KernelBuffers& buffers) {
        const auto* from = static_cast<const float*>(whole.get_data_handle());
        for (int64_t f = 0; f < all; ++f) {
          const int64_t place = f / filters % merged;  // of its group among the merged ones
          store_reals(from + (f * merged + place) * row, row, type, buffers.outputs[0], f * row);
        }
      });
  return whole;
}

/// Where windows reach far out of the depth of volumes, oneDNN 3.2 computes wrong weights, and
/// writes beside its memory: in bf16 where they are deeper than the volumes, in f32 with strides of
/// 2 where more than half of them may lie outside. Zeros in the volumes are its way out.
bool reaches_far_out(const ConvPlan& plan) {
  const int64_t reach = (plan.kernel[0] - 1) * plan.dilation[0] + 1;
  const int64_t outside = std::max(plan.pad_begin[0], plan.pad_end[0]);
  return plan.spatial == 3 && outside > 0 && (reach > plan.in[0] || 2 * outside >= reach);
}

/// The same convolution of volumes that have the padding of their depth.
ConvPlan with_whole_depth(ConvPlan plan) {
  plan.in[0] += plan.pad_begin[0] + plan.pad_end[0];
  plan.pad_begin[0] = plan.pad_end[0] = 0;
  return plan;
}

/// X, as the library sees it.
Memory grad_weight_images(ProgramBuilder& program, const ConvPlan& plan, const ConvDescs& descs,
                          const ConvTypes& types, const ConvLayouts& layouts) {
  if (!reaches_far_out(plan)) return program.input(1, descs.x);
  const Memory::desc own = describe(plan, types, Direction::kGradWeight, layouts).x;
  return program.padded(program.input(1, own), descs.x, {0, 0, plan.pad_begin[0], 0, 0});
}

/// Is there a tap that meets nothing but padding, wherever the window is? oneDNN 3.2 leaves what it
/// likes in the gradient of some of those in bf16, which is 0.
bool has_idle_tap(const ConvPlan& plan) {
  for (size_t d = 0; d < 3; ++d) {
    for (int64_t k = 0; k < plan.kernel[d]; ++k) {
      const Range met =
          outputs_within(0, plan.in[d], plan.stride[d], plan.offset(d, k), plan.out[d]);
      if (met.empty()) return true;
    }
  }
  return false;
}

/// Input 0 is dY, input 1 is X, output 0 is dW.
Prepared build_grad_weight(const KernelCall& call, const ConvPlan& plan, Path path) {
  const DType compute = compute_type(path, call.inputs[0].dtype);
  if (compute != DType::kF32 && has_idle_tap(plan))
    return Prepared::no("a tap that meets nothing but padding");
  const DType result = plan.groups > 1 ? DType::kF32 : result_type(compute, call.outputs[0].dtype);
  const ConvLayouts layouts{is_blocked(call.inputs[1]), is_blocked(call.inputs[0])};
  const ConvTypes types{compute, result, compute};
  const ConvPlan seen = reaches_far_out(plan) ? with_whole_depth(plan) : plan;
  const WeightProblem problem = weight_problem(seen, types, layouts);
  const ConvDescs& d = problem.descs;
  const WeightDescriptor& descriptor = problem.descriptor;
  if (is_plain_loop(descriptor)) return Prepared::no(kOnlyPlainLoop);
  if ((layouts.x_blocked || layouts.y_blocked) &&
      problem.merged > weight_problem(seen, types, {}).merged) {
    return Prepared::no("in this layout more groups are taken together");
  }
  ProgramBuilder program(call);
  const Memory dy = program.in_layout(program.input(0, d.y), descriptor.diff_dst_desc());
  const Memory x = program.in_layout(grad_weight_images(program, plan, d, types, layouts),
                                     descriptor.src_desc());
  const Memory plain_dw =
      problem.merged > 1 ? merged_output(program, call, plan, problem) : program.output(0, d.w);
  const Memory dw = program.out_layout(plain_dw, descriptor.diff_weights_desc());
  program.execute(dnnl::convolution_backward_weights(descriptor), descriptor,
                  {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_WEIGHTS, dw}});
  return program.finish();
}

std::string refusal(const KernelCall& call, Path path) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0))
    return "an operand is missing";
  if (std::string why = conv_rank_refusal(call.inputs[0].shape); !why.empty()) return why;
  if (std::string why = path_refusal(path, call.inputs[0].dtype); !why.empty()) return why;
  if (call.inputs[1].dtype != call.inputs[0].dtype) return "operands of different types";
  if (call.domain.empty() && call.has_input(2) && call.inputs[2].dtype != call.inputs[0].dtype) {
    return "a bias of another type";
  }
  return operand_refusal(call);
}

using Plan = ConvPlan (*)(const KernelCall&);
using Build = Prepared (*)(const KernelCall&, const ConvPlan&, Path);

template <Plan plan_call, Build build, Path path>
Prepared prepare(const KernelCall& call) {
  if (std::string why = refusal(call, path); !why.empty()) return Prepared::no(why);
  const ConvPlan plan = plan_call(call);
  if (call.op != "ConvTranspose" && has_empty_windows(plan))
    return Prepared::no("a window that meets nothing but padding");
  return guarded(call, [&] { return build(call, plan, path); });
}

/// x and y of the call, each as it comes.
BlockedOperands each(const KernelCall& call, const ConvPlan& plan, Direction direction) {
  BlockedOperands operands;
  if (!onednn_isa_name().starts_with("avx512")) return operands;  // its blocks would be of 8
  const bool grad_weight = direction == Direction::kGradWeight;
  for (uint32_t i = 0; i <= (grad_weight ? 1 : 0); ++i) {
    if (blocked::fit(call, 1u << i, 0)) operands.inputs |= 1u << i;
  }
  if (!grad_weight && blocked::fit(call, 0, 0b1)) operands.outputs = 0b1;
  operands.preferred = !stays_plain(plan, direction) || call.inputs[0].dtype != DType::kF32;
  return operands;
}

BlockedOperands blocked_forward(const KernelCall& call) {
  return each(call, plan_conv(call), Direction::kForward);
}

BlockedOperands blocked_grad_input(const KernelCall& call) {
  return each(call, plan_conv_grad_input(call), Direction::kGradInput);
}

BlockedOperands blocked_grad_weight(const KernelCall& call) {
  return each(call, plan_conv_grad_weight(call), Direction::kGradWeight);
}

}  // namespace

std::vector<KernelRow> conv_rows() {
  constexpr Path kNative = Path::kNative, kViaF32 = Path::kViaF32;
  return {
      {"", "Conv", "onednn.conv", prepare<plan_conv, build_forward, kNative>},
      {"", "Conv", "onednn.conv_via_f32", prepare<plan_conv, build_forward, kViaF32>},
      {"", "ConvTranspose", "onednn.conv", prepare<plan_conv_transpose, build_transpose, kNative>},
      {"", "ConvTranspose", "onednn.conv_via_f32",
       prepare<plan_conv_transpose, build_transpose, kViaF32>},
      {"ai.halfnote", "ConvGradInput", "onednn.conv",
       prepare<plan_conv_grad_input, build_grad_input, kNative>},
      {"ai.halfnote", "ConvGradInput", "onednn.conv_via_f32",
       prepare<plan_conv_grad_input, build_grad_input, kViaF32>},
      {"ai.halfnote", "ConvGradWeight", "onednn.conv",
       prepare<plan_conv_grad_weight, build_grad_weight, kNative>},
      {"ai.halfnote", "ConvGradWeight", "onednn.conv_via_f32",
       prepare<plan_conv_grad_weight, build_grad_weight, kViaF32>},
  };
}

}  // namespace halfnote::cpu::onednn

namespace halfnote::cpu::blocked {

/// The plain rows see how the operands lie.
std::vector<BlockedRow> conv_rows() {
  std::vector<BlockedRow> rows;
  for (const KernelRow& plain : onednn::conv_rows()) {
    if (plain.op == "ConvTranspose") continue;
    const auto operands = plain.op == "Conv"            ? onednn::blocked_forward
                          : plain.op == "ConvGradInput" ? onednn::blocked_grad_input
                                                        : onednn::blocked_grad_weight;
    const bool native = plain.name == "onednn.conv";
    const std::string_view name = native ? "blocked.conv" : "blocked.conv_via_f32";
    rows.push_back({{plain.domain, plain.op, name, plain.prepare}, plain.name, operands});
  }
  return rows;
}

}  // namespace halfnote::cpu::blocked
