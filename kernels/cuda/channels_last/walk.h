// How blocks share out (rows, channels), a row being the channels of a pixel: a thread has some
// channels side by side and goes down its rows, so that neighbours read neighbours and what a
// channel needs stays in registers. Sums are taken in two stages, in an order that the shape alone
// decides: a block leaves one pair a channel for its slice of rows, a second kernel merges them.
// The next rows of a thread are on their way to shared memory while it computes: memory answers
// late, and registers would hold too few of them.
#pragma once

#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Channels side by side that a thread takes where their number allows it: 16 bytes of them.
template <class T>
inline constexpr int kChannelsTogether = 16 / sizeof(T);
/// Blocks that a multiprocessor is to have at once: fewer where a body says that its threads know
/// more than the registers of so many have room for.
inline constexpr int kBlocksAtOnce = 3;
template <class Body>
constexpr int blocks_of() {
  if constexpr (requires { Body::kBlocksAtOnce; }) return Body::kBlocksAtOnce;
  return kBlocksAtOnce;
}
template <class Body>
inline constexpr int kBlocksOf = blocks_of<Body>();
/// Rows whose operands have room in a block's shared memory, of which there are 48 KiB.
template <int kOperands>
inline constexpr int kRowsWithRoom = kOperands == 1   ? 6
                                     : kOperands == 2 ? 5
                                     : kOperands == 3 ? 4
                                                      : 3;

struct ChannelWalk {
  int64_t rows = 0, channels = 0;
  int64_t images = 1;             // of so many rows each; no slice is of two
  int64_t slice = 1, slices = 1;  // rows of a block, and such slices of an image
  unsigned lanes = 1;             // threads side by side, a power of two up to 32
  int together = 1;               // channels of a thread
  bool backwards = false;         // the last slices first, and each from its end

  /// Slices are at least `least` rows a thread long, at most `most` in number, and make no more
  /// than about `blocks` blocks. `wide` channels go together if their number allows it.
  ChannelWalk(int64_t rows_of_image, int64_t channels_of_all, int wide, int64_t least, int64_t most,
              int64_t blocks, int64_t image_count = 1)
      : rows(rows_of_image), channels(channels_of_all), images(image_count) {
    if (channels % wide == 0) together = wide;
    while (lanes < 32 && int64_t{lanes} * together < channels) lanes *= 2;
    const int64_t side_by_side = std::max(1u, grid().x) * std::max<int64_t>(1, images);
    most = std::clamp<int64_t>(blocks / side_by_side, 1, most);
    slice = std::max(least * step(), (rows + most - 1) / most);
    slice = (slice + step() - 1) / step() * step();
    slices = (rows + slice - 1) / slice;
  }
  /// Rows that a block reads at once.
  __host__ __device__ int64_t step() const { return kBlock / lanes; }
  /// Slices of all images.
  __host__ __device__ int64_t turns() const { return slices * images; }
  /// Slices go on in z where they are more than y may be: a thread of a few channels sums no more
  /// rows than another one, however many there are.
  dim3 grid() const {
    constexpr int64_t kMostInY = 65535;
    const int64_t width = std::max<int64_t>(1, int64_t{lanes} * together);
    const int64_t layers = std::max<int64_t>(1, (turns() + kMostInY - 1) / kMostInY);
    return {static_cast<unsigned>((channels + width - 1) / width),
            static_cast<unsigned>((turns() + layers - 1) / layers), static_cast<unsigned>(layers)};
  }
  /// The slices in the order of their blocks; the last blocks may have none.
  __device__ int64_t turn() const { return int64_t{blockIdx.z} * gridDim.y + blockIdx.y; }
  /// The image of a block, and its rows among those of all images.
  struct Part {
    int64_t image, begin, end;
  };
  __device__ Part part() const {
    const int64_t at = backwards ? turns() - 1 - turn() : turn();
    const int64_t image = images == 1 ? 0 : at / slices, first = (at - image * slices) * slice;
    const int64_t end = first + slice < rows ? first + slice : rows;
    return {image, image * rows + first, image * rows + end};
  }
  /// The first channel of a thread; it has none if that is behind the last.
  template <int V>
  __device__ int64_t channel() const {
    return (int64_t{blockIdx.x} * lanes + threadIdx.x % lanes) * V;
  }
};

/// Blocks of a pass: whole waves where multiprocessors have 2, 3 or 6 each.
inline constexpr int64_t kWaves = kMultiprocessors * 6;
/// Rows of which a thread sums 16-bit elements in f32.
inline constexpr int64_t kMostRows = 256;

/// A walk for sums of each image: few slices to merge, and few rows a thread.
template <class T>
ChannelWalk walk_for_sums(int64_t rows, int64_t channels, int64_t images = 1) {
  const ChannelWalk one(rows, channels, kChannelsTogether<T>, 1, 1, 1);
  const int64_t least = rows / (kMostRows * one.step()) + 1;
  return {rows,
          channels,
          kChannelsTogether<T>,
          8,
          std::max(kWaves, least),
          std::max(kWaves, least * one.grid().x * images),
          images};
}
/// A walk for what each element becomes alone: that for sums the other way round. The cache still
/// has what was read last, the ends of the last slices.
template <class T>
ChannelWalk walk_for_elements(int64_t rows, int64_t channels, int64_t images = 1) {
  ChannelWalk walk = walk_for_sums<T>(rows, channels, images);
  walk.backwards = true;
  return walk;
}

/// The V elements that a thread has of each operand in a row.
template <class T, int V, int kOperands>
using RowOf = std::array<Packed<T, V>, kOperands>;
/// With a bit for each of them: those of `body.signs`, a byte for 8 channels.
template <class T, int V, int kOperands>
struct SignedRowOf : RowOf<T, V, kOperands> {
  unsigned signs;
};
template <class Body>
inline constexpr bool kHasSigns = requires(const Body& body) {
  body.signs;
};

/// A body that is too long to stand there once for each row on its way; not with signs.
template <class Body>
inline constexpr bool kIsLong = requires {
  Body::kLong;
};

/// The rows of a thread. `body.operands` are the tensors, Body::kOperands of Body::Element.
template <int V, class Body>
class Rows {
  using T = typename Body::Element;
  static constexpr int kOperands = Body::kOperands, kRoom = kRowsWithRoom<kOperands>;
  struct alignas(16) Room {  // also for the sums of all threads
    Packed<T, V> of[kRoom][kOperands][kBlock];
  };
  static constexpr bool kAhead = sizeof(Packed<T, V>) == 16;
  static constexpr bool kSigned = kHasSigns<Body> && V == 8;

 public:
  using Row = std::conditional_t<kSigned, SignedRowOf<T, V, kOperands>, RowOf<T, V, kOperands>>;

  /// Sets off for the first ones.
  __device__ Rows(const ChannelWalk& walk, const Body& body, int64_t channel) : body_(body) {
    const ChannelWalk::Part part = walk.part();
    const int64_t first = part.begin + threadIdx.x / walk.lanes;
    const int64_t count = first < part.end ? (part.end - first - 1) / walk.step() + 1 : 0;
    const int64_t row = walk.backwards ? first + (count - 1) * walk.step() : first;
    left_ = next_left_ = static_cast<int32_t>(count);
    at_ = next_ = row * walk.channels + channel;
    step_ = walk.step() * walk.channels;
    if (walk.backwards) step_ = -step_;
    HN_UNROLL
    for (int r = 0; r + 1 < kRoom; ++r) set_off(r);
    ask_for_signs(at_, left_);
  }

  /// Calls `use(row, at)` for each of them; `at` is the place of its elements.
  template <class Use>
  __device__ void for_each(const Use& use) {
    while (left_ > 0) {
      signs_ = asked_;
      ask_for_signs(at_ + kRoom * step_, left_ - kRoom);
      if constexpr (kAhead && kIsLong<Body>) {
        HN_IN_TURN
        for (int r = 0; r < kRoom; ++r) {
          if (!take(r, use)) break;
        }
      } else {
        HN_UNROLL
        for (int r = 0; r < kRoom; ++r) {
          if (!take(r, use)) break;
        }
      }
    }
  }

  /// For `kEach` M of each thread, when all of the block have used what is there.
  template <class M, int kEach>
  __device__ static M* room_for() {
    __syncthreads();
    if constexpr (sizeof(Room) >= kBlock * kEach * sizeof(M)) return reinterpret_cast<M*>(&room());
    using All = M[kBlock * kEach];
    HN_SHARED(All, all);
    return all;
  }

 private:
  __device__ static Room& room() {
    HN_SHARED(Room, all);
    return all;
  }
  /// False if there is none left.
  template <class Use>
  __device__ bool take(int r, const Use& use) {
    if (left_ == 0) return false;
    const Row row = arrived(r);
    set_off((r + kRoom - 1) % kRoom);  // where the row before this one was
    use(row, at_);
    at_ += step_;
    --left_;
    return true;
  }
  __device__ void set_off(int r) {
    if (next_left_ > 0) {
      HN_UNROLL
      for (int i = 0; i < kOperands; ++i) {
        if constexpr (kAhead) {
          copy_ahead(&room().of[r][i][threadIdx.x], body_.operands[i] + next_);
        } else {
          kept_[r][i] = load_packed<V>(body_.operands[i] + next_);
        }
      }
    }
    if constexpr (kAhead) end_copy_group();
    next_ += step_;
    --next_left_;
  }
  /// Those of the next round are asked for together, a round ahead: whoever waits for one load to a
  /// register waits for all of them.
  __device__ void ask_for_signs([[maybe_unused]] int64_t from, [[maybe_unused]] int32_t rows) {
    if constexpr (kSigned) {
      HN_UNROLL
      for (int r = 0; r < kRoom; ++r) {
        if (r < rows) asked_[r] = body_.signs[from / 8];
        from += step_;
      }
    }
  }
  __device__ Row arrived(int r) {
    if constexpr (kAhead) {
      wait_for_copies<kRoom - 2>();
      Row row;
      HN_UNROLL
      for (int i = 0; i < kOperands; ++i) row[i] = room().of[r][i][threadIdx.x];
      if constexpr (kSigned) row.signs = signs_[r];
      return row;
    } else {
      return kept_[r];
    }
  }

  const Body& body_;
  int64_t at_, next_, step_;
  int32_t left_, next_left_;                  // rows of the thread
  std::array<Row, kAhead ? 1 : kRoom> kept_;  // too small for copies ahead: in registers
  std::array<unsigned, kSigned ? kRoom : 1> signs_, asked_;
};

/// The sums of a channel, without initializers, which shared memory does not have.
template <class M, int N>
struct SumsOf {
  M of[N];

  template <class Other>
  __device__ void add(const SumsOf<Other, N>& others) {
    HN_UNROLL
    for (int n = 0; n < N; ++n) of[n] += others.of[n];
  }
};
/// What a body's slices leave a channel.
template <class Body>
using SlicesOf = SumsOf<double, Body::kSums>;

/// Bytes of the partial sums of a walk, `sums` a channel.
inline size_t room_for_sums(const ChannelWalk& walk, int sums) {
  return static_cast<size_t>(walk.turns() * walk.channels * sums) * sizeof(double);
}

/// Adds up the sums of all threads of a block whose place is the same below `lanes`; the first
/// `lanes` threads get them. `all` is shared memory that nobody uses, for a sum of each thread.
template <int N>
__device__ SumsOf<double, N> add_rows(const SumsOf<double, N>& mine, unsigned lanes,
                                      SumsOf<double, N>* all) {
  all[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kBlock / 2; half >= lanes; half /= 2) {
    if (threadIdx.x < half) all[threadIdx.x].add(all[threadIdx.x + half]);
    __syncthreads();
  }
  return all[threadIdx.x];
}

/// The Body::kSums sums of each channel over a block's slice. `body.know(c, channels)` gives what
/// is known of the channels from c on, those of an image being counted behind those of the one
/// before it; `body.add<V>(channels, row, at, sums)` adds what is in a row
/// to a thread's sums, which are of Body::Number.
template <int V, class Body>
__global__ void __launch_bounds__(kBlock, kBlocksOf<Body>)
    sum_slices(const __grid_constant__ Body body, ChannelWalk walk, SlicesOf<Body>* parts) {
  using Sums = SumsOf<typename Body::Number, Body::kSums>;
  if (walk.turn() >= walk.turns()) return;  // all threads of the block
  const int64_t c = walk.channel<V>();
  Sums sums[V] = {};
  if (c < walk.channels) {
    Rows<V, Body> rows(walk, body, c);
    typename Body::Channel channels[V];
    body.template know<V>(walk.part().image * walk.channels + c, channels);
    rows.for_each(
        [&](const auto& row, int64_t at) { body.template add<V>(channels, row, at, sums); });
  }
  // A thread adds up V rows of one channel.
  auto* all = Rows<V, Body>::template room_for<Sums, V>();
  HN_UNROLL
  for (int v = 0; v < V; ++v) all[v * kBlock + threadIdx.x] = sums[v];
  __syncthreads();
  const unsigned width = walk.lanes * V, place = threadIdx.x % width;
  const unsigned lane = place % walk.lanes, v = place / walk.lanes;
  const unsigned first = threadIdx.x / width * V;
  SlicesOf<Body> mine = {};
  HN_UNROLL
  for (unsigned row = first; row < first + V; ++row)
    mine.add(all[v * kBlock + row * walk.lanes + lane]);
  mine = add_rows(mine, width, Rows<V, Body>::template room_for<SlicesOf<Body>, 1>());
  const int64_t of = int64_t{blockIdx.x} * width + lane * V + v;
  if (threadIdx.x < width && of < walk.channels) parts[walk.turn() * walk.channels + of] = mine;
}

/// Merges the slices of kLanes lines a block, a line being a channel of an image, and calls
/// `finish(line, sums)` for each, which has Finish::kSums of them.
template <unsigned kLanes, class Finish>
__global__ void __launch_bounds__(kBlock)
    merge_channels(const __grid_constant__ Finish finish, const SlicesOf<Finish>* parts,
                   int64_t channels, int64_t images, int64_t slices) {
  using All = SlicesOf<Finish>[kBlock];
  HN_SHARED(All, all);
  const int64_t line = int64_t{blockIdx.x} * kLanes + threadIdx.x % kLanes;
  const int64_t image = images == 1 ? 0 : line / channels;
  const bool has_line = line < channels * images;
  const SlicesOf<Finish>* from = parts + image * (slices - 1) * channels + line;
  const int64_t end = has_line ? slices : 0;
  SlicesOf<Finish> mine = {};
  HN_UNROLL_BY_4
  for (int64_t s = threadIdx.x / kLanes; s < end; s += kBlock / kLanes)
    mine.add(from[s * channels]);
  const SlicesOf<Finish> sums = add_rows(mine, kLanes, all);
  if (threadIdx.x < kLanes && has_line) finish(line, sums);
}

/// Those of a walk for sums; without slices of it `finish` gets sums of nothing.
template <class Finish>
void finish_channels(Stream& stream, const Finish& finish, const ChannelWalk& walk,
                     const std::byte* parts, bool has_sums = true) {
  const int64_t slices = has_sums ? walk.slices : 0;
  const auto merge = [&]<unsigned kLanes>() {
    launch(stream, merge_channels<kLanes, Finish>, blocks_for(walk.channels * walk.images, kLanes),
           kBlock, 0, finish, reinterpret_cast<const SlicesOf<Finish>*>(parts), walk.channels,
           walk.images, slices);
  };
  // Four slices a thread at most, all on their way at once.
  if (slices > kBlock) {
    merge.template operator()<1>();
  } else {
    merge.template operator()<4>();
  }
}

/// `body.know(c, channels)` as above; `body.apply<V>(channels, row, at)` for what is in a row.
template <int V, class Body>
__global__ void __launch_bounds__(kBlock, kBlocksOf<Body>)
    apply_channels(const __grid_constant__ Body body, ChannelWalk walk) {
  const int64_t c = walk.channel<V>();
  if (c >= walk.channels || walk.turn() >= walk.turns()) return;
  Rows<V, Body> rows(walk, body, c);
  typename Body::Channel channels[V];
  body.template know<V>(walk.part().image * walk.channels + c, channels);
  rows.for_each([&](const auto& row, int64_t at) { body.template apply<V>(channels, row, at); });
}

/// T is what the walk was made for.
template <class T, class Body>
void run_sums(Stream& stream, const Body& body, const ChannelWalk& walk, std::byte* parts) {
  const auto kernel =
      walk.together == 1 ? sum_slices<1, Body> : sum_slices<kChannelsTogether<T>, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk,
         reinterpret_cast<SlicesOf<Body>*>(parts));
}

template <class T, class Body>
void run_elements(Stream& stream, const Body& body, const ChannelWalk& walk) {
  const auto kernel =
      walk.together == 1 ? apply_channels<1, Body> : apply_channels<kChannelsTogether<T>, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk);
}

/// Stores what has been computed for the V elements at a place.
template <class T, int V>
__device__ void store_row(T* to, int64_t at, const Math<T> (&numbers)[V]) {
  store_packed(to + at, pack_of<T>(numbers));
}

}  // namespace halfnote::HN_CUDA
