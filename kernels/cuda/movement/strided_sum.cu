// AddStrided: a part is added to every stride-th pixel of X; where Y lies over X no other pixel is
// touched. Plain, an element a thread; channels last, as many channels of a pixel as 16 bytes hold.
#include "kernels/cpu/movement/strided_sum.h"

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/reduction/window.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

/// A StridedSum as a kernel's argument: images of some channels that lie side by side, planes being
/// images of one.
struct StridedWalk {
  Divisor groups, size[3], part[3], strides[3];
  int64_t channels;

  StridedWalk(const cpu::StridedSum& p, int64_t side_by_side, int together)
      : groups(side_by_side / together), channels(side_by_side) {
    for (size_t d = 0; d < 3; ++d) {
      size[d] = Divisor(p.size[d]);
      part[d] = Divisor(p.part[d]);
      strides[d] = Divisor(p.strides[d]);
    }
  }
  struct Place {
    int64_t image, group;
    int64_t at[3];
  };
  __device__ Place place(int64_t i, const Divisor (&dims)[3]) const {
    Place place;
    int64_t pixel = groups.quotient(i);
    place.group = i - pixel * groups.value();
    HN_UNROLL
    for (int d = 2; d >= 0; --d) {
      const int64_t rest = dims[d].quotient(pixel);
      place.at[d] = pixel - rest * dims[d].value();
      pixel = rest;
    }
    place.image = pixel;
    return place;
  }
  /// Which group of an image of such dims it is.
  __device__ int64_t index(const Place& place, const Divisor (&dims)[3]) const {
    int64_t pixel = place.image;
    HN_UNROLL
    for (int d = 0; d < 3; ++d) pixel = pixel * dims[d].value() + place.at[d];
    return pixel * groups.value() + place.group;
  }
};

template <class T, int V>
__device__ Packed<T, V> sum_of(const Packed<T, V>& a, const Packed<T, V>& b) {
  Math<T> sums[V];
  HN_UNROLL
  for (int v = 0; v < V; ++v) sums[v] = load_number(a.of[v]) + load_number(b.of[v]);
  return pack_of<T>(sums);
}

/// For each group of the part: Y lies over X.
template <class T, int V>
struct AddPart {
  StridedWalk walk;
  const T* part;
  T* y;
  __device__ void operator()(int64_t i) const {
    StridedWalk::Place place = walk.place(i, walk.part);
    HN_UNROLL
    for (int d = 0; d < 3; ++d) place.at[d] *= walk.strides[d].value();
    T* const to = y + walk.index(place, walk.size) * V;
    store_packed(to, sum_of(load_packed<V>(to), load_packed<V>(part + i * V)));
  }
};

/// For each group of X.
template <class T, int V>
struct CopyAndAddPart {
  StridedWalk walk;
  const T *x, *part;
  T* y;
  __device__ void operator()(int64_t i) const {
    StridedWalk::Place place = walk.place(i, walk.size);
    Packed<T, V> pack = load_packed<V>(x + i * V);
    bool has_part = true;
    HN_UNROLL
    for (int d = 0; d < 3; ++d) {
      const int64_t at = walk.strides[d].quotient(place.at[d]);
      has_part =
          has_part && at * walk.strides[d].value() == place.at[d] && at < walk.part[d].value();
      place.at[d] = at;
    }
    if (has_part) pack = sum_of(pack, load_packed<V>(part + walk.index(place, walk.part) * V));
    store_packed(y + i * V, pack);
  }
};

/// `channels` lie side by side: 1 where the tensors are plain.
template <class T>
Prepared kernel_of(const cpu::StridedSum& plan, int64_t channels) {
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T *x = buffers.in<T>(0), *part = buffers.in<T>(1);
    T* y = buffers.out<T>(0);
    for_channels<T, 3>(channels, {x, part, y}, [&]<int V>() {
      const StridedWalk walk(plan, channels, V);
      if (x == y)
        return for_each(stream, plan.planes * plan.part_pixels() / V, AddPart<T, V>{walk, part, y});
      for_each(stream, plan.planes * plan.pixels() / V, CopyAndAddPart<T, V>{walk, x, part, y});
    });
  };
  return make_kernel(body, 0, cpu::strided_sum_in_place);
}

Prepared prepare_plain(const KernelCall& call) {
  cpu::StridedSum plan;
  if (std::string why = cpu::plan_strided_sum(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() { return kernel_of<T>(plan, 1); });
}

Prepared prepare_last(const KernelCall& call) {
  cpu::StridedSum plan;
  if (std::string why = cpu::plan_strided_sum(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.outputs[0].dtype,
                         [&]<class T>() { return kernel_of<T>(plan, plan.channels); });
}

/// X and Y, and the part if it has more than one pixel.
BlockedOperands operands(const KernelCall& call) {
  if (!is_region_type(call.outputs[0].dtype)) return {};
  return all_channels_last(call, call.has_input(1) && fits_channels_last(call.inputs[1]) ? 0b11 : 1,
                           1);
}

}  // namespace

std::vector<KernelRow> strided_sum_rows() {
  return {{"ai.halfnote", "AddStrided", "own.strided_sum", prepare_plain}};
}

std::vector<BlockedRow> channels_last_strided_sums() {
  return {{{"ai.halfnote", "AddStrided", "channels_last.strided_sum", prepare_last},
           "own.strided_sum",
           operands}};
}

}  // namespace halfnote::HN_CUDA
