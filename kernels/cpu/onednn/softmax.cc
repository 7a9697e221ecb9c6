// Softmax and LogSoftmax with their gradients on oneDNN, which computes in f32 whatever the
// storage.
#include "kernels/cpu/onednn/parts.h"
#include "kernels/cpu/onednn/program.h"

namespace halfnote::cpu::onednn {

namespace {

std::string refusal(const KernelCall& call, size_t inputs, std::string type_refusal) {
  for (size_t i = 0; i < inputs; ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (call.inputs[i].dtype != call.inputs[0].dtype) return "operands of different types";
    if (call.inputs[i].shape != call.inputs[0].shape) return "operands of different shapes";
  }
  if (!call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].shape.empty()) return "a scalar";
  if (!type_refusal.empty()) return type_refusal;
  if (call.outputs[0].dtype != call.inputs[0].dtype) return "operands of different types";
  return operand_refusal(call);
}

std::string forward_type_refusal(Path path, DType dtype) {
  if (dtype != DType::kBF16) return path_refusal(path, dtype);
  return path == Path::kViaF32 ? "" : "oneDNN rounds a bf16 softmax twice";
}

int axis_of(const KernelCall& call) {
  const auto rank = static_cast<int64_t>(call.inputs[0].shape.size());
  return static_cast<int>(normalize_axis(attributes_of(call).get_int("axis", -1), rank));
}

template <dnnl::algorithm algorithm, Path path>
Prepared prepare_forward(const KernelCall& call) {
  if (!call.has_input(0)) return Prepared::no("X is missing");
  const std::string type_refusal = forward_type_refusal(path, call.inputs[0].dtype);
  if (std::string why = refusal(call, 1, type_refusal); !why.empty()) return Prepared::no(why);
  return guarded(call, [&] {
    const Memory::desc desc = plain(call.inputs[0].shape, compute_type(path, call.inputs[0].dtype));
    const dnnl::softmax_forward::primitive_desc descriptor(
        engine(), dnnl::prop_kind::forward_training, algorithm, desc, desc, axis_of(call),
        attributes());
    if (is_plain_loop(descriptor))
      return Prepared::no("oneDNN has only a plain loop for this call");
    ProgramBuilder program(call);
    program.execute(
        dnnl::softmax_forward(descriptor), descriptor,
        {{DNNL_ARG_SRC, program.input(0, desc)}, {DNNL_ARG_DST, program.output(0, desc)}});
    return program.finish();
  });
}

template <dnnl::algorithm algorithm, Path path>
Prepared prepare_backward(const KernelCall& call) {
  if (!call.has_input(0)) return Prepared::no("dY is missing");
  const std::string type_refusal = path_refusal(path, call.inputs[0].dtype);
  if (std::string why = refusal(call, 2, type_refusal); !why.empty()) return Prepared::no(why);
  return guarded(call, [&] {
    const Memory::desc desc = plain(call.inputs[0].shape, compute_type(path, call.inputs[0].dtype));
    const dnnl::softmax_forward::primitive_desc hint(engine(), dnnl::prop_kind::forward_training,
                                                     algorithm, desc, desc, axis_of(call),
                                                     attributes());
    const dnnl::softmax_backward::primitive_desc descriptor(engine(), algorithm, desc, desc, desc,
                                                            axis_of(call), hint, attributes());
    if (is_plain_loop(descriptor))
      return Prepared::no("oneDNN has only a plain loop for this call");
    ProgramBuilder program(call);
    program.execute(dnnl::softmax_backward(descriptor), descriptor,
                    {{DNNL_ARG_DIFF_DST, program.input(0, desc)},
                     {DNNL_ARG_DST, program.input(1, desc)},
                     {DNNL_ARG_DIFF_SRC, program.output(0, desc)}});
    return program.finish();
  });
}

}  // namespace

std::vector<KernelRow> softmax_rows() {
  constexpr auto kSoftmax = dnnl::algorithm::softmax_accurate;
  constexpr auto kLogSoftmax = dnnl::algorithm::softmax_log;
  constexpr Path kNative = Path::kNative, kViaF32 = Path::kViaF32;
  return {
      {"", "LogSoftmax", "onednn.softmax", prepare_forward<kLogSoftmax, kNative>},
      {"", "LogSoftmax", "onednn.softmax_via_f32", prepare_forward<kLogSoftmax, kViaF32>},
      {"", "Softmax", "onednn.softmax", prepare_forward<kSoftmax, kNative>},
      {"", "Softmax", "onednn.softmax_via_f32", prepare_forward<kSoftmax, kViaF32>},
      {"ai.halfnote", "LogSoftmaxGrad", "onednn.softmax", prepare_backward<kLogSoftmax, kNative>},
      {"ai.halfnote", "LogSoftmaxGrad", "onednn.softmax_via_f32",
       prepare_backward<kLogSoftmax, kViaF32>},
      {"ai.halfnote", "SoftmaxGrad", "onednn.softmax", prepare_backward<kSoftmax, kNative>},
      {"ai.halfnote", "SoftmaxGrad", "onednn.softmax_via_f32", prepare_backward<kSoftmax, kViaF32>},
  };
}

}  // namespace halfnote::cpu::onednn
