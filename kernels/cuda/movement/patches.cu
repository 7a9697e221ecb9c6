// Patches: windows of an image become channels. Plain, an element of the result a thread; channels
// last, where it is read by a convolution, a thread makes as many channels of a pixel as 16 bytes
// hold. The image is read in the layout that it has.
#include "kernels/cpu/movement/patches.h"

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

/// A PatchesPlan as a kernel's argument.
struct PatchWalk {
  RealPointer image;
  int64_t image_size, channel_step, pixel_step;  // strides in elements; of an image all of it
  int64_t filled;                                // channels
  Divisor channels, kernel[3], results[3];       // of the image, of a window, of the result
  Divisor made;                                  // channels of the result
  int64_t sizes[3], strides[3], before[3];

  PatchWalk(const cpu::PatchesPlan& p, const Operand& from)
      : image{nullptr, from.dtype},
        image_size(p.channels * p.windows.in_size()),
        channel_step(is_channels_last(from) ? 1 : p.windows.in_size()),
        pixel_step(is_channels_last(from) ? p.channels : 1),
        filled(p.filled),
        channels(p.channels),
        made(p.made) {
    for (size_t d = 0; d < 3; ++d) {
      kernel[d] = Divisor(p.windows.kernel[d]);
      results[d] = Divisor(p.windows.out[d]);
      sizes[d] = p.windows.in[d];
      strides[d] = p.windows.stride[d];
      before[d] = p.windows.pad_begin[d];
    }
  }

  /// The window of a pixel of the result: its image, and the places where it begins.
  struct Window {
    int64_t image;
    int64_t begin[3];
  };
  __device__ Window window(int64_t pixel) const {
    Window at;
    for (int d = 2; d >= 0; --d) {
      const int64_t rest = results[d].quotient(pixel);
      at.begin[d] = (pixel - rest * results[d].value()) * strides[d] - before[d];
      pixel = rest;
    }
    at.image = pixel;
    return at;
  }
  __device__ float value(const Window& at, int64_t channel) const {
    if (channel >= filled) return 0;
    int64_t tap = channels.quotient(channel), index = 0, step = 1;
    const int64_t own = channel - tap * channels.value();
    for (int d = 2; d >= 0; --d) {
      const int64_t rest = kernel[d].quotient(tap);
      const int64_t place = at.begin[d] + tap - rest * kernel[d].value();
      if (place < 0 || place >= sizes[d]) return 0;
      index += place * step;
      step *= sizes[d];
      tap = rest;
    }
    return image.load<float>(at.image * image_size + own * channel_step + index * pixel_step);
  }
};

template <class T>
struct PatchElement {
  PatchWalk walk;
  T* to;
  Divisor pixels;
  __device__ void operator()(int64_t i) const {
    const int64_t line = pixels.quotient(i), batch = walk.made.quotient(line);
    const int64_t pixel = batch * pixels.value() + (i - line * pixels.value());
    to[i] = store_number<T>(walk.value(walk.window(pixel), line - batch * walk.made.value()));
  }
};

/// V channels that follow each other.
template <class T, int V>
struct PatchPack {
  PatchWalk walk;
  T* to;
  Divisor packs;  // of a pixel
  __device__ void operator()(int64_t i) const {
    const int64_t pixel = packs.quotient(i), first = (i - pixel * packs.value()) * V;
    const PatchWalk::Window window = walk.window(pixel);
    Math<T> values[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) values[v] = walk.value(window, first + v);
    store_packed(to + i * V, pack_of<T>(values));
  }
};

template <class T>
void run_last(const KernelBuffers& buffers, const PatchWalk& walk, int64_t count) {
  constexpr int V = 16 / sizeof(T);
  T* to = buffers.out<T>(0);
  const int64_t made = walk.made.value();
  if (made % V == 0 && are_aligned(std::array<const void*, 1>{to})) {
    for_each(stream_of(buffers), count / V, PatchPack<T, V>{walk, to, Divisor(made / V)});
  } else {
    for_each(stream_of(buffers), count, PatchPack<T, 1>{walk, to, walk.made});
  }
}

Prepared prepare_patches(const KernelCall& call) {
  cpu::PatchesPlan plan;
  if (std::string why = cpu::plan_patches(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [walk = PatchWalk(plan, call.inputs[0]), count = call.outputs[0].size(),
                       pixels = plan.windows.out_size(),
                       last = is_channels_last(call.outputs[0])](const KernelBuffers& buffers) {
      PatchWalk from = walk;
      from.image.data = buffers.inputs[0];
      if (last) return run_last<T>(buffers, from, count);
      for_each(stream_of(buffers), count,
               PatchElement<T>{from, buffers.out<T>(0), Divisor(pixels)});
    };
    return make_kernel(body);
  });
}

/// Each side as it comes.
BlockedOperands patches_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return {};
  const auto fits = [](const Operand& operand) {
    return is_region_type(operand.dtype) && fits_channels_last(operand) ? 1u : 0u;
  };
  return {fits(call.inputs[0]), fits(call.outputs[0])};
}

}  // namespace

std::vector<KernelRow> patches_rows() {
  return {{"ai.halfnote", "Patches", "own.patches", prepare_patches}};
}

std::vector<BlockedRow> channels_last_patches() {
  return {{{"ai.halfnote", "Patches", "channels_last.patches", prepare_patches},
           "own.patches",
           patches_operands}};
}

}  // namespace halfnote::HN_CUDA
