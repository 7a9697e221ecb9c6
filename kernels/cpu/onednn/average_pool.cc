// AveragePool and its gradient on oneDNN.
#include "kernels/cpu/onednn/parts.h"
#include "kernels/cpu/onednn/program.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::onednn {

namespace {

struct PoolDims {
  Memory::dims strides, kernel, dilations, pad_begin, pad_end;
};

PoolDims describe(const PoolGeometry& g, size_t spatial) {
  const auto used = [spatial](const PoolGeometry::Dims& dims) {
    return Memory::dims(dims.end() - static_cast<int64_t>(spatial), dims.end());
  };
  PoolDims dims{used(g.stride), used(g.kernel), used(g.dilation), used(g.pad_begin),
                used(g.pad_end)};
  for (int64_t& dilation : dims.dilations) --dilation;  // the library counts the gaps
  return dims;
}

/// ceil_mode lets windows hang over the end; the library then counts their elements differently.
bool overhangs(const PoolGeometry& g) {
  for (size_t d = 0; d < 3; ++d) {
    const int64_t reach = (g.out[d] - 1) * g.stride[d] + (g.kernel[d] - 1) * g.dilation[d] + 1;
    if (reach > g.in[d] + g.pad_begin[d] + g.pad_end[d]) return true;
  }
  return false;
}

std::string refusal(const KernelCall& call, Path path) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (std::string why = path_refusal(path, call.inputs[0].dtype); !why.empty()) return why;
  if (call.outputs[0].dtype != call.inputs[0].dtype) return "operands of different types";
  return operand_refusal(call);
}

dnnl::algorithm algorithm_of(const KernelCall& call) {
  return attributes_of(call).get_int("count_include_pad", 0) != 0
             ? dnnl::algorithm::pooling_avg_include_padding
             : dnnl::algorithm::pooling_avg_exclude_padding;
}

dnnl::pooling_forward::primitive_desc forward_descriptor(const KernelCall& call,
                                                         const Memory::desc& x,
                                                         const Memory::desc& y, const PoolDims& d) {
  return {engine(),
          dnnl::prop_kind::forward_training,
          algorithm_of(call),
          x,
          y,
          d.strides,
          d.kernel,
          d.dilations,
          d.pad_begin,
          d.pad_end,
          attributes()};
}

template <Path path>
Prepared prepare_forward(const KernelCall& call) {
  if (std::string why = refusal(call, path); !why.empty()) return Prepared::no(why);
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  PoolGeometry g;
  if (std::string why = plan_pool(call, in.shape, out.shape, g); !why.empty())
    return Prepared::no(why);
  if (overhangs(g)) return Prepared::no("windows that hang over the padded end");
  return guarded(call, [&] {
    const Memory::desc x = plain(in.shape, compute_type(path, in.dtype)),
                       y = plain(out.shape, compute_type(path, in.dtype));
    const auto descriptor = forward_descriptor(call, x, y, describe(g, in.shape.size() - 2));
    if (is_plain_loop(descriptor))
      return Prepared::no("oneDNN has only a plain loop for this call");
    ProgramBuilder program(call);
    program.execute(dnnl::pooling_forward(descriptor), descriptor,
                    {{DNNL_ARG_SRC, program.input(0, x)}, {DNNL_ARG_DST, program.output(0, y)}});
    return program.finish();
  });
}

template <Path path>
Prepared prepare_gradient(const KernelCall& call) {
  if (std::string why = refusal(call, path); !why.empty()) return Prepared::no(why);
  const Operand &dy = call.inputs[0], &dx = call.outputs[0];
  PoolGeometry g;
  if (std::string why = plan_pool(call, dx.shape, dy.shape, g); !why.empty())
    return Prepared::no(why);
  if (overhangs(g)) return Prepared::no("windows that hang over the padded end");
  return guarded(call, [&] {
    const Memory::desc x = plain(dx.shape, compute_type(path, dx.dtype)),
                       y = plain(dy.shape, compute_type(path, dx.dtype));
    const PoolDims d = describe(g, dx.shape.size() - 2);
    const dnnl::pooling_backward::primitive_desc descriptor(
        engine(), algorithm_of(call), x, y, d.strides, d.kernel, d.dilations, d.pad_begin,
        d.pad_end, forward_descriptor(call, x, y, d), attributes());
    if (is_plain_loop(descriptor))
      return Prepared::no("oneDNN has only a plain loop for this call");
    ProgramBuilder program(call);
    program.execute(
        dnnl::pooling_backward(descriptor), descriptor,
        {{DNNL_ARG_DIFF_DST, program.input(0, y)}, {DNNL_ARG_DIFF_SRC, program.output(0, x)}});
    return program.finish();
  });
}

}  // namespace

std::vector<KernelRow> average_pool_rows() {
  return {
      {"", "AveragePool", "onednn.pool", prepare_forward<Path::kNative>},
      {"", "AveragePool", "onednn.pool_via_f32", prepare_forward<Path::kViaF32>},
      {"ai.halfnote", "AveragePoolGrad", "onednn.pool", prepare_gradient<Path::kNative>},
      {"ai.halfnote", "AveragePoolGrad", "onednn.pool_via_f32", prepare_gradient<Path::kViaF32>},
  };
}

}  // namespace halfnote::cpu::onednn
