// Patches: windows of an image become channels, rounded to the type of the result. Reference.
#include "kernels/cpu/movement/patches.h"

#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

namespace {

/// One channel of the result.
template <class T, class U>
void fill_channel(const PatchesPlan& p, const T* image, int64_t channel, U* to) {
  const PoolGeometry& g = p.windows;
  if (channel >= p.filled) {
    std::fill_n(to, g.out_size(), store<U>(0));
    return;
  }
  const T* from = image + channel % p.channels * g.in_size();
  PoolGeometry::Dims tap{};
  for (int64_t d = 2, rest = channel / p.channels; d >= 0; --d) {
    tap[static_cast<size_t>(d)] = rest % g.kernel[static_cast<size_t>(d)];
    rest /= g.kernel[static_cast<size_t>(d)];
  }
  for_outputs(g, [&](int64_t position, const PoolGeometry::Dims& at) {
    int64_t index = 0;
    bool inside = true;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t place = at[d] * g.stride[d] - g.pad_begin[d] + tap[d];
      inside = inside && place >= 0 && place < g.in[d];
      index = index * g.in[d] + place;
    }
    to[position] = store<U>(inside ? load(from[index]) : 0);
  });
}

Prepared prepare_patches(const KernelCall& call) {
  PatchesPlan plan;
  if (std::string why = plan_patches(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return for_float_type(call.outputs[0].dtype, [&]<class U>() {
      return make_kernel([plan, threads = call.threads](const KernelBuffers& buffers) {
        const T* images = buffers.in<T>(0);
        U* to = buffers.out<U>(0);
        const int64_t image = plan.channels * plan.windows.in_size();
        parallel_blocks(plan.batch * plan.made, 1, threads, [&](int64_t begin, int64_t end) {
          for (int64_t line = begin; line < end; ++line) {
            fill_channel(plan, images + line / plan.made * image, line % plan.made,
                         to + line * plan.windows.out_size());
          }
        });
      });
    });
  });
}

}  // namespace

std::string plan_patches(const KernelCall& call, PatchesPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Operand &image = call.inputs[0], &result = call.outputs[0];
  const bool wide = image.dtype == DType::kF64;
  if (!is_float(image.dtype) || !is_float(result.dtype) || wide != (result.dtype == DType::kF64))
    return "not between these types";
  if (image.shape.size() < 3 || result.shape.size() != image.shape.size())
    return "neither 1, 2 nor 3 spatial dims";
  Shape of_windows = result.shape;
  of_windows[1] = image.shape[1];
  PoolGeometry& g = plan.windows;
  if (std::string why = plan_pool(call, image.shape, of_windows, g); !why.empty()) return why;
  plan.batch = image.shape[0];
  plan.channels = image.shape[1];
  plan.made = result.shape[1];
  plan.filled = checked_mul(plan.channels, element_count(g.kernel));
  return plan.filled <= plan.made ? "" : "too few channels for the windows";
}

std::vector<KernelRow> patches_rows() {
  return {{"ai.halfnote", "Patches", "reference.patches", prepare_patches}};
}

}  // namespace halfnote::cpu
