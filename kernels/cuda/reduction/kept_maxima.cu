// A maximum that keeps its taps: an output a thread, or some channels of one.
#include "kernels/cuda/reduction/kept_maxima.h"

#include <array>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/flat_maxima.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::KeptMaxPool;

/// Of X as it is; writes what was found of a window.
template <class T, int V>
struct LargestOutputs {
  T* y;
  uint8_t* taps;  // null where nobody reads them
  bool relu;

  __device__ Maxima<T, V> start(int64_t) const { return {}; }
  template <class Elements>
  __device__ void write(int64_t place, int64_t place_of_taps, Maxima<T, V>& maxima,
                        const Elements&) const {
    if (relu) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        if (!(maxima.most[v] > 0)) maxima.taps[v] = kNoTap;
        if (maxima.most[v] < 0) maxima.most[v] = 0;
      }
    }
    store_packed(y + place, pack_of<T>(maxima.most));
    if (taps != nullptr) store_packed(taps + place_of_taps, maxima.packed_taps());
  }
};

/// The bits of V elements, by which X is multiplied with 1, -1 or 0.
template <class T, int V>
struct SignBits {
  static constexpr size_t kBytes = V * sizeof(T);
  using Word = std::conditional_t<kBytes % 4 == 0, uint32_t, uint16_t>;
  static constexpr int kWords = kBytes / sizeof(Word);
  Word keep[kWords], turn[kWords];

  __device__ explicit SignBits(const double (&scale)[V]) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
    constexpr Bits kAll = static_cast<Bits>(~Bits{0}),
                   kSign = static_cast<Bits>(kAll ^ (kAll >> 1));
    Bits kept[V], turned[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const int sign = cpu::sign_of(scale[v]);
      kept[v] = sign == 0 ? Bits{0} : kAll;
      turned[v] = sign < 0 ? kSign : Bits{0};
    }
    memcpy(keep, kept, kBytes);
    memcpy(turn, turned, kBytes);
  }
  /// Twice, it is X again where it is not multiplied with 0.
  __device__ Packed<T, V> of(const Packed<T, V>& pack) const {
    Word words[kWords];
    memcpy(words, &pack, kBytes);
    HN_UNROLL
    for (int w = 0; w < kWords; ++w) words[w] = (words[w] & keep[w]) ^ turn[w];
    Packed<T, V> turned;
    memcpy(&turned, words, kBytes);
    return turned;
  }
  __device__ bool have_zero() const {
    bool zero = false;
    HN_UNROLL
    for (int w = 0; w < kWords; ++w) zero = zero || keep[w] != static_cast<Word>(~Word{0});
    return zero;
  }
};

/// The maxima of X times the signs of its channels.
template <class T, int V>
struct SignedMaxima {
  SignBits<T, V> signs;
  Maxima<T, V> counted;

  __device__ explicit SignedMaxima(const double (&scale)[V]) : signs(scale) {}
  __device__ void take(const Packed<T, V>& pack, int64_t tap) { counted.take(signs.of(pack), tap); }
};

/// Of X times the signs of its channels; writes X there.
template <class T, int V>
struct SignedOutputs {
  T* y;
  uint8_t* taps;
  RealPointer scale;
  bool are_planes;  // that the pool takes for images of one channel
  Divisor channels;

  /// `channel`: the first of a group, or the plane.
  __device__ SignedMaxima<T, V> start(int64_t channel) const {
    const int64_t first = are_planes ? channels.remainder(channel) : channel;
    double numbers[V];
    if (are_f32(scale)) {
      constexpr int kTogether = V % 4 == 0 ? 4 : 1;
      HN_UNROLL
      for (int v = 0; v < V; v += kTogether) {
        const auto some = load_packed<kTogether>(static_cast<const float*>(scale.data) + first + v);
        HN_UNROLL
        for (int i = 0; i < kTogether; ++i) numbers[v + i] = some.of[i];
      }
    } else {
      HN_UNROLL
      for (int v = 0; v < V; ++v) numbers[v] = scale[first + v];
    }
    return SignedMaxima<T, V>(numbers);
  }
  /// `elements_at(tap)`: those of X that a tap of the window has.
  template <class Elements>
  __device__ void write(int64_t place, int64_t place_of_taps, const SignedMaxima<T, V>& maxima,
                        const Elements& elements_at) const {
    const auto found_taps = maxima.counted.packed_taps();
    Packed<T, V> found = maxima.signs.of(pack_of<T>(maxima.counted.most));
    if (maxima.signs.have_zero()) {
      HN_UNROLL
      for (int v = 0; v < V; ++v)
        if (found_taps.of[v] != kNoTap) found.of[v] = elements_at(found_taps.of[v])[v];
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      if (found_taps.of[v] == kNoTap)
        found.of[v] = store_number<T>(-static_cast<Math<T>>(INFINITY));
    }
    store_packed(y + place, found);
    if (taps != nullptr) store_packed(taps + place_of_taps, found_taps);
  }
};

/// To is one of the above.
template <class T, int V, class To>
struct KeepMaxima {
  PoolImages images;
  TapPlaces places;
  const T* x;
  To to;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    auto maxima = to.start(images.channels == 1 ? at.image : at.channel);
    images.for_taps(at.at, x + images.first(at, images.in), [&](int64_t tap, const T* elements) {
      maxima.take(load_packed<V>(elements), tap);
    });
    to.write(i * V, places.of(i * V), maxima,
             [&](int64_t tap) { return x + images.at_tap(at, tap); });
  }
};

/// The same with places of 32 bits.
template <class T, int V, class To>
struct FlatKeepMaxima {
  FlatImages images;
  const T* x;
  To to;
  __device__ void operator()(int64_t i) const {
    auto maxima = to.start(images.place<V>(i, images.w.by_out, images.h.by_out).channel);
    images.for_window<V>(i, x,
                         [&](int32_t tap, const Packed<T, V>& pack) { maxima.take(pack, tap); });
    to.write(i * V, i * V, maxima, [&](int32_t tap) { return x + images.at_tap<V>(i, tap); });
  }
};

template <class T>
Prepared kernel_of(const KernelCall& call, const KeptMaxPool& pool, int64_t channels) {
  const cpu::PoolGeometry g = without_idle_steps(pool.g);
  const int64_t count = call.outputs[0].size();
  const bool lies_last = channels == pool.channels;
  const bool flat = lies_last && FlatImages::takes(g, call.inputs[0].size(), count);
  return make_kernel([=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    uint8_t* taps = buffers.out<uint8_t>(1);
    const void* scale = pool.scale == DType::kUndefined ? nullptr : buffers.inputs[1];
    for_channels<T, 4>(channels, {x, y, taps, scale}, [&]<int V>() {
      const auto run = [&]<class To>(const To& to) {
        if (flat)
          return for_each(stream, count / V,
                          FlatKeepMaxima<T, V, To>{FlatImages(g, channels, V), x, to});
        const TapPlaces places{Divisor(g.out_size()), Divisor(lies_last ? 1 : pool.channels)};
        for_each(stream, count / V,
                 KeepMaxima<T, V, To>{PoolImages(g, channels, V), places, x, to});
      };
      if (pool.scale == DType::kUndefined) return run(LargestOutputs<T, V>{y, taps, pool.relu});
      run(SignedOutputs<T, V>{y, taps, {scale, pool.scale}, channels == 1, Divisor(pool.channels)});
    });
  });
}

}  // namespace

Prepared prepare_kept_max_pool(const KernelCall& call, const KeptMaxPool& pool, int64_t channels) {
  const auto kernel = [&]<class T>() { return kernel_of<T>(call, pool, channels); };
  const DType type = call.inputs[0].dtype;
  return channels == 1 ? for_float_type(type, kernel) : for_region_type(type, kernel);
}

}  // namespace halfnote::HN_CUDA
