// CumSum. Lines whose elements are adjacent get a block each, which goes from tile to tile; lines
// that lie side by side, and short ones, a thread each. Few long lines are cut into pieces: the
// sums of the pieces are taken first, then their running sums, with which the pieces begin. The
// order depends on the shape alone.
#include "kernels/cpu/reduction/along.h"
#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::Along;

constexpr unsigned kTile = kAlongBlock;  // an element for each thread of a block

/// How the lines are walked over, and cut.
struct Pieces {
  int64_t lines = 0, dim = 0;
  bool by_blocks = false;
  int64_t length = 0, count = 1;  // of a line's pieces

  explicit Pieces(const Along& along)
      : lines(along.lines()), dim(along.dim), by_blocks(wants_blocks(along)) {
    // Enough at once for a GPU, each with so many tiles or elements that the cut pays.
    const int64_t least = by_blocks ? int64_t{8} * kTile : 32;
    const int64_t at_once = by_blocks ? kMultiprocessors * 8 : kMultiprocessors * 512;
    const int64_t wanted = std::min(at_once / std::max<int64_t>(1, lines), dim / least);
    length = wanted < 2 ? dim : (dim + wanted - 1) / wanted;
    if (by_blocks) length = (length + kTile - 1) / kTile * kTile;
    count = dim == 0 ? 1 : (dim + length - 1) / length;
  }
  int64_t all() const { return lines * count; }
  size_t bytes() const { return count > 1 ? static_cast<size_t>(all()) * sizeof(double) : 0; }
};

/// Sums in f64; those of integers wrap around.
template <class X>
struct RunningSums {
  using A = typename X::Sum;
  X x;
  void* y;  // may be where x is
  Along along;
  bool exclusive, reverse;
  int64_t length, count;  // of a line's pieces
  A* before = nullptr;    // what each piece of a line begins with; null: 0

  struct Piece {
    int64_t line, index, begin, end;
  };
  /// Neighbours are pieces of lines that lie side by side.
  __device__ Piece piece(int64_t at) const {
    const int64_t index = at / along.lines(), line = at - index * along.lines();
    const int64_t begin = index * length, end = begin + length;
    return {line, index, begin, end < along.dim ? end : along.dim};
  }
  __device__ int64_t place(int64_t line, int64_t i) const {
    return along.start(line) + (reverse ? along.dim - 1 - i : i) * along.inner;
  }
  __device__ A read(int64_t line, int64_t i) const { return static_cast<A>(x[place(line, i)]); }
  __device__ void write(int64_t line, int64_t i, A sum) const {
    x.write(y, place(line, i), static_cast<typename X::M>(sum));
  }
  __device__ A start(const Piece& p) const {
    return before == nullptr ? A(0) : before[p.line * count + p.index];
  }
  /// A piece by one thread.
  __device__ void operator()(int64_t at) const {
    const Piece p = piece(at);
    A sum = start(p);
    for (int64_t i = p.begin; i < p.end; ++i) {
      const A next = math::Add::value(sum, read(p.line, i));
      write(p.line, i, exclusive ? sum : next);
      sum = next;
    }
  }
};

/// The sum of a piece, by one thread.
template <class X>
struct SumPiece {
  RunningSums<X> sums;
  __device__ void operator()(int64_t at) const {
    const auto p = sums.piece(at);
    typename X::Sum sum = 0;
    HN_UNROLL_BY_4
    for (int64_t i = p.begin; i < p.end; ++i) sum = math::Add::value(sum, sums.read(p.line, i));
    sums.before[p.line * sums.count + p.index] = sum;
  }
};

/// The same by blocks.
template <class X>
__global__ void __launch_bounds__(kTile)
    sum_pieces(const __grid_constant__ RunningSums<X> sums, int64_t pieces) {
  using A = typename X::Sum;
  for (int64_t at = blockIdx.x; at < pieces; at += gridDim.x) {
    const auto p = sums.piece(at);
    A mine = 0, total = 0;
    HN_UNROLL_BY_4
    for (int64_t i = p.begin + threadIdx.x; i < p.end; i += kTile)
      mine = math::Add::value(mine, sums.read(p.line, i));
    sum_of_earlier<kTile>(mine, total);
    if (threadIdx.x == 0) sums.before[p.line * sums.count + p.index] = total;
  }
}

/// The running sums of pieces by blocks.
template <class X>
__global__ void __launch_bounds__(kTile)
    run_pieces(const __grid_constant__ RunningSums<X> sums, int64_t pieces) {
  using A = typename X::Sum;
  for (int64_t at = blockIdx.x; at < pieces; at += gridDim.x) {
    const auto p = sums.piece(at);
    A of_tiles = sums.start(p);
    for (int64_t tile = p.begin; tile < p.end; tile += kTile) {
      const int64_t i = tile + threadIdx.x;
      const bool inside = i < p.end;
      const A value = inside ? sums.read(p.line, i) : A(0);
      A of_tile;
      const A before = math::Add::value(of_tiles, sum_of_earlier<kTile>(value, of_tile));
      if (inside) sums.write(p.line, i, sums.exclusive ? before : math::Add::value(before, value));
      of_tiles = math::Add::value(of_tiles, of_tile);
    }
  }
}

/// The sums of pieces as an operand themselves.
template <class A>
struct Partials {
  using M = A;
  using Sum = A;
  const A* data;
  __device__ A operator[](int64_t at) const { return data[at]; }
  __device__ void write(void* to, int64_t place, A value) const {
    static_cast<A*>(to)[place] = value;
  }
};

unsigned blocks_of(int64_t pieces) {
  return static_cast<unsigned>(std::min<int64_t>(pieces, kMaxBlocks));
}

template <class X>
void run_sums(Stream& stream, RunningSums<X> sums, const Pieces& pieces, std::byte* workspace) {
  using A = typename X::Sum;
  if (pieces.count > 1) {
    sums.before = reinterpret_cast<A*>(workspace);
    if (pieces.by_blocks) {
      launch(stream, sum_pieces<X>, blocks_of(pieces.all()), kTile, 0, sums, pieces.all());
    } else {
      for_each(stream, pieces.all(), SumPiece<X>{sums});
    }
    const Along of_pieces{pieces.lines, pieces.count, 1};
    const RunningSums<Partials<A>> of_sums{{sums.before}, sums.before,  of_pieces, true,
                                           false,         pieces.count, 1};
    launch(stream, run_pieces<Partials<A>>, blocks_of(pieces.lines), kTile, 0, of_sums,
           pieces.lines);
  }
  if (!pieces.by_blocks) return for_each(stream, pieces.all(), sums);
  launch(stream, run_pieces<X>, blocks_of(pieces.all()), kTile, 0, sums, pieces.all());
}

Prepared prepare_cum_sum(const KernelCall& call) {
  cpu::CumSumPlan plan;
  if (std::string why = cpu::plan_cum_sum(call, plan); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kBool) return Prepared::no("not for bool");
  const Pieces pieces(plan.along);
  return for_elements(dtype, [&]<class X>() {
    const auto body = [plan, dtype, pieces](const KernelBuffers& buffers) {
      const RunningSums<X> sums{X::of(buffers.inputs[0], dtype, Use::kSum),
                                buffers.outputs[0],
                                plan.along,
                                plan.exclusive,
                                plan.reverse,
                                pieces.length,
                                pieces.count};
      run_sums(stream_of(buffers), sums, pieces, buffers.workspace);
    };
    return make_kernel(body, pieces.bytes(), [](size_t input, size_t) { return input == 0; });
  });
}

}  // namespace

std::vector<KernelRow> running_sum_rows() {
  return {{"", "CumSum", "own.running_sum", prepare_cum_sum}};
}

}  // namespace halfnote::HN_CUDA
