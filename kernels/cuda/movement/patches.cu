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
  /// What a channel of the result takes of each window.
  struct Taken {
    int64_t offset = 0;  // of the element behind that of the first tap and channel 0
    uint32_t tap = 0;    // its place in the window, 10 bits a dim
    bool zero = true;
  };
  static constexpr int64_t kMostTaps = 1 << 10;         // along a dim
  static constexpr int64_t kMostTaken = INT32_MAX / 2;  // channels
  __device__ Taken taken(int64_t channel) const {
    Taken taken;
    if (channel >= filled) return taken;
    uint32_t tap = channels.small_quotient(static_cast<uint32_t>(channel));
    const int64_t own = channel - tap * channels.value();
    int64_t index = 0, step = 1;
    HN_UNROLL
    for (int d = 2; d >= 0; --d) {
      const uint32_t rest = kernel[d].small_quotient(tap);
      const uint32_t place = tap - rest * static_cast<uint32_t>(kernel[d].value());
      index += place * step;
      taken.tap |= place << (10 * d);
      step *= sizes[d];
      tap = rest;
    }
    taken.zero = false;
    taken.offset = own * channel_step + index * pixel_step;
    return taken;
  }
  __device__ bool is_inside(const Window& at, uint32_t tap) const {
    bool inside = true;
    HN_UNROLL
    for (int d = 0; d < 3; ++d) {
      const int64_t place = at.begin[d] + (tap >> (10 * d) & (kMostTaps - 1));
      inside = inside && place >= 0 && place < sizes[d];
    }
    return inside;
  }
  /// The first tap's element of channel 0, which may lie outside.
  __device__ int64_t place(const Window& at) const {
    return at.image * image_size +
           ((at.begin[0] * sizes[1] + at.begin[1]) * sizes[2] + at.begin[2]) * pixel_step;
  }
  __device__ bool has_all(const Window& at) const {
    bool all = true;
    HN_UNROLL
    for (int d = 0; d < 3; ++d)
      all = all && at.begin[d] >= 0 && at.begin[d] + kernel[d].value() <= sizes[d];
    return all;
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

/// 16 bytes of channels that follow each other, of some pixels one after the other where there are
/// many: where their elements lie in a window is found once.
template <class T, class From>
struct PatchPacks {
  static constexpr int V = 16 / sizeof(T);
  static constexpr int64_t kMostPixels = 8, kThreads = kMultiprocessors * 1024;
  PatchWalk walk;
  const From* image;
  T* to;
  Divisor packs;  // of a pixel
  int64_t pixels, apart;

  PatchPacks(const PatchWalk& from, T* result, int64_t count)
      : walk(from),
        image(static_cast<const From*>(from.image.data)),
        to(result),
        packs(from.made.value() / V),
        pixels(count / from.made.value()),
        apart(pixels) {
    const int64_t of_thread =
        std::clamp<int64_t>(pixels * packs.value() / kThreads, 1, kMostPixels);
    apart = (pixels + of_thread - 1) / of_thread;
  }

  __device__ void operator()(int64_t i) const {
    int64_t pixel = packs.quotient(i);
    const int64_t first = (i - pixel * packs.value()) * V;
    PatchWalk::Taken taken[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) taken[v] = walk.taken(first + v);
    for (; pixel < pixels; pixel += apart) {
      const PatchWalk::Window window = walk.window(pixel);
      const int64_t place = walk.place(window);
      Math<T> values[V] = {};
      if (walk.has_all(window)) {
        HN_UNROLL
        for (int v = 0; v < V; ++v)
          if (!taken[v].zero) values[v] = load_number(image[place + taken[v].offset]);
      } else {
        HN_UNROLL
        for (int v = 0; v < V; ++v)
          if (!taken[v].zero && walk.is_inside(window, taken[v].tap))
            values[v] = load_number(image[place + taken[v].offset]);
      }
      store_packed(to + pixel * walk.made.value() + first, pack_of<T>(values));
    }
  }
};

template <class T, class From>
void run_packs(const KernelBuffers& buffers, const PatchWalk& walk, int64_t count) {
  const PatchPacks<T, From> packs(walk, buffers.out<T>(0), count);
  for_each(stream_of(buffers), packs.apart * packs.packs.value(), packs);
}

/// An element that lies channels last.
template <class T>
struct LastPatchElement {
  PatchWalk walk;
  T* to;
  __device__ void operator()(int64_t i) const {
    const int64_t pixel = walk.made.quotient(i);
    to[i] = store_number<T>(walk.value(walk.window(pixel), i - pixel * walk.made.value()));
  }
};

template <class T>
void run_last(const KernelBuffers& buffers, const PatchWalk& walk, int64_t count) {
  T* to = buffers.out<T>(0);
  bool in_packs =
      walk.made.value() % (16 / sizeof(T)) == 0 && are_aligned(std::array<const void*, 1>{to});
  in_packs = in_packs && walk.made.value() <= walk.kMostTaken;
  for (const Divisor& taps : walk.kernel) in_packs = in_packs && taps.value() <= walk.kMostTaps;
  const DType from = walk.image.dtype;
  if (in_packs && from == DType::kF32) return run_packs<T, float>(buffers, walk, count);
  if (in_packs && from == dtype_of<T>()) return run_packs<T, T>(buffers, walk, count);
  for_each(stream_of(buffers), count, LastPatchElement<T>{walk, to});
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
