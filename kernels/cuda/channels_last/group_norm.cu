// Group- and InstanceNormalization and their gradient channels last, on the walk of
// BatchNormalization: sums of each channel of an image, merged to those of its group, then each
// element by the line of its channel. X and dY are read twice. Elements of 16 bits are computed
// with in f32, and a thread's sums of them are f32; all sums are of distances from the first
// element of the channel.
#include "kernels/cuda/channels_last/norms.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/normalization/group.h"

namespace halfnote::HN_CUDA {

namespace {

/// Groups that a block merges at most, and the channels of one from which it merges it alone.
constexpr unsigned kMergedGroups = 8;
constexpr int64_t kManyChannels = 512;

/// X as (images, rows, channels). A line is a channel of an image.
template <class T>
struct GroupLines {
  const T* x = nullptr;
  int64_t images, rows, channels, groups, per_group;
  double epsilon;
  Divisor by_channels;

  explicit GroupLines(const cpu::Groups& plan)
      : images(plan.batch),
        rows(plan.plane),
        channels(plan.channels),
        groups(plan.groups),
        per_group(plan.per_group()),
        epsilon(plan.epsilon),
        by_channels(plan.channels) {}
  __host__ __device__ int64_t count() const { return images * groups; }
  __device__ double elements() const { return static_cast<double>(per_group * rows); }
  /// The first element of a line.
  __device__ double pivot(int64_t line) const {
    return load_number(x[line + by_channels.quotient(line) * (rows - 1) * channels]);
  }
  /// Those of the lines from there on, as pivots.
  template <int V>
  __device__ void read(int64_t line, NormMath<T> (&pivots)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) pivots[v] = static_cast<NormMath<T>>(pivot(line + v));
  }
  unsigned groups_of_block() const { return per_group > kManyChannels ? 1 : kMergedGroups; }
};

/// The sums of a line, merged from the slices of a walk.
template <int N>
struct KeepSums {
  static constexpr int kSums = N;
  SumsOf<double, N>* lines;
  __device__ void operator()(int64_t line, const SumsOf<double, N>& sums) const {
    lines[line] = sums;
  }
};

/// A channel in its group.
struct Member {
  int64_t line, channel, first;  // and the first line of the group
};

/// Merges the lines of each group: `body.add(member, line's sums, sums)` adds those of a line to
/// the group's, `body.finish(member, line's sums, sums)` takes these for each line.
template <class T, class Body>
__global__ void __launch_bounds__(kBlock)
    merge_groups(const __grid_constant__ Body body, const __grid_constant__ GroupLines<T> g,
                 const SlicesOf<Body>* lines, unsigned groups) {
  using All = SlicesOf<Body>[kBlock];
  using Few = SlicesOf<Body>[kMergedGroups];
  HN_SHARED(All, all);
  HN_SHARED(Few, merged);
  const unsigned lane = threadIdx.x % groups, own = threadIdx.x / groups, step = kBlock / groups;
  const int64_t group = int64_t{blockIdx.x} * groups + lane;
  const int64_t members = group < g.count() ? g.per_group : 0;
  // Groups of an image lie side by side, and so do images.
  const int64_t first = group * g.per_group,
                channel = first - g.by_channels.quotient(first) * g.channels;
  SlicesOf<Body> mine = {};
  for (int64_t c = own; c < members; c += step)
    body.add(Member{first + c, channel + c, first}, lines[first + c], mine);
  mine = add_rows(mine, groups, all);
  if (threadIdx.x < groups) merged[threadIdx.x] = mine;
  __syncthreads();
  for (int64_t c = own; c < members; c += step)
    body.finish(Member{first + c, channel + c, first}, lines[first + c], merged[lane]);
}

/// The sums of each line, then those of each group.
template <class T, class Body>
void run_merge(Stream& stream, const Body& body, const GroupLines<T>& g, const ChannelWalk& walk,
               std::byte* parts) {
  using Sums = SlicesOf<Body>;
  auto* lines = reinterpret_cast<Sums*>(parts);
  if (walk.slices > 1) {  // else each part is a line
    lines += walk.turns() * walk.channels;
    finish_channels(stream, KeepSums<Body::kSums>{lines}, walk, parts);
  }
  const unsigned groups = g.groups_of_block();
  launch(stream, merge_groups<T, Body>, blocks_for(g.count(), groups), kBlock, 0, body, g, lines,
         groups);
}
/// Bytes of the parts and what is merged of them.
inline size_t room_for_lines(const ChannelWalk& walk, int sums) {
  const auto lines = static_cast<size_t>(walk.images * walk.channels * sums);
  return room_for_sums(walk, sums) + lines * sizeof(double);
}

// --- forward -------------------------------------------------------------------------------------

template <class T>
using GroupMoments = MomentSums<T, GroupLines<T>>;

/// Adds the sums of distances from a line's pivot as those from `shift` before it.
__device__ inline void add_moved(double shift, double count, double sum, double squares,
                                 double& to_sum, double& to_squares) {
  to_sum += sum + count * shift;
  to_squares += squares + shift * (2 * sum + count * shift);
}

template <class T>
struct FinishGroup {
  static constexpr int kSums = 2;
  GroupLines<T> g;
  RealPointer scale, bias;
  NormLines<T> lines;
  __device__ void add(const Member& of, const SumsOf<double, kSums>& line,
                      SumsOf<double, kSums>& sums) const {
    add_moved(g.pivot(of.line) - g.pivot(of.first), static_cast<double>(g.rows), line.of[0],
              line.of[1], sums.of[0], sums.of[1]);
  }
  __device__ void finish(const Member& of, const SumsOf<double, kSums>&,
                         const SumsOf<double, kSums>& sums) const {
    const Moments<double> moments =
        moments_of_sums(g.pivot(of.first), sums.of[0], sums.of[1], g.elements(), g.epsilon);
    lines.write(of.line,
                line_of<T>(moments.mean, moments.inv_std, scale[of.channel], bias[of.channel]));
  }
};

template <class T>
Prepared groups_kernel(const KernelCall& call, const cpu::Groups& plan) {
  const ChannelWalk sums = walk_for_sums<T>(plan.plane, plan.channels, plan.batch);
  const ChannelWalk elements = walk_for_elements<T>(plan.plane, plan.channels, plan.batch);
  const size_t lines_at = room_for_lines(sums, FinishGroup<T>::kSums);
  const int64_t count = plan.batch * plan.channels;
  const auto body = [=, shape = GroupLines<T>(plan), scale = call.inputs[1].dtype,
                     bias = call.inputs[2].dtype](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    GroupLines<T> g = shape;
    g.x = buffers.in<T>(0);
    const NormLines<T> lines(buffers.workspace + lines_at, count);
    run_sums<T>(stream, GroupMoments<T>{{g.x}, g}, sums, buffers.workspace);
    run_merge(stream,
              FinishGroup<T>{g, {buffers.inputs[1], scale}, {buffers.inputs[2], bias}, lines}, g,
              sums, buffers.workspace);
    run_elements<T>(
        stream,
        Normalize<T, Added::kNothing>{{g.x}, buffers.out<T>(0), nullptr, lines, g.channels, false},
        elements);
  };
  return make_kernel(body, lines_at + NormLines<T>::bytes(count),
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

// --- gradient ------------------------------------------------------------------------------------

/// Σ dy, Σ dy·(x − pivot), Σ(x − pivot) and Σ(x − pivot)².
template <class T>
struct GroupGradientSums {
  using Element = T;
  using Number = NormMath<T>;
  using Channel = Number;
  static constexpr int kOperands = 2, kSums = 4;
  const T* operands[kOperands];
  GroupLines<T> g;
  template <int V>
  __device__ void know(int64_t line, Channel (&pivots)[V]) const {
    g.read(line, pivots);
  }
  template <int V>
  __device__ void add(const Channel (&pivots)[V], const RowOf<T, V, 2>& row, int64_t,
                      SumsOf<Number, kSums> (&sums)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto dy = static_cast<Number>(load_number(row[0].of[v]));
      const Number distance = static_cast<Number>(load_number(row[1].of[v])) - pivots[v];
      sums[v].of[0] += dy;
      sums[v].of[1] += dy * distance;
      sums[v].of[2] += distance;
      sums[v].of[3] += distance * distance;
    }
  }
};

/// dx = factor·dy − offset − (x − mean)·slope.
template <class T>
struct GroupGradientLine {
  NormMath<T> mean, factor, offset, slope;
};

template <class T>
struct FinishGroupGradient {
  using Sums = SumsOf<double, 4>;
  static constexpr int kSums = 4;
  GroupLines<T> g;
  RealPointer scale;
  LineTable<GroupGradientLine<T>, NormMath<T>> lines;
  double *d_scales, *d_biases;  // of each line
  /// Σ dy and Σ dy·(x − the first line's pivot) times the scale, and the moments from there.
  __device__ void add(const Member& of, const Sums& line, Sums& sums) const {
    const double shift = g.pivot(of.line) - g.pivot(of.first), factor = scale[of.channel];
    sums.of[0] += factor * line.of[0];
    sums.of[1] += factor * (line.of[1] + shift * line.of[0]);
    add_moved(shift, static_cast<double>(g.rows), line.of[2], line.of[3], sums.of[2], sums.of[3]);
  }
  __device__ void finish(const Member& of, const Sums& line, const Sums& sums) const {
    using M = NormMath<T>;
    const double origin = g.pivot(of.first), count = g.elements();
    const Moments<double> moments =
        moments_of_sums(origin, sums.of[2], sums.of[3], count, g.epsilon);
    const double inv_std = moments.inv_std;
    const double product = (sums.of[1] - (moments.mean - origin) * sums.of[0]) * inv_std;
    lines.write(of.line, {static_cast<M>(moments.mean), static_cast<M>(scale[of.channel] * inv_std),
                          static_cast<M>(inv_std * sums.of[0] / count),
                          static_cast<M>(inv_std * inv_std * product / count)});
    d_biases[of.line] = line.of[0];
    d_scales[of.line] = (line.of[1] - (moments.mean - g.pivot(of.line)) * line.of[0]) * inv_std;
  }
};

template <class T>
struct GroupInputGradient {
  using Element = T;
  using Channel = GroupGradientLine<T>;
  static constexpr int kOperands = 2;
  const T* operands[kOperands];
  T* dx;
  LineTable<GroupGradientLine<T>, NormMath<T>> lines;
  template <int V>
  __device__ void know(int64_t line, Channel (&of)[V]) const {
    lines.read(line, of);
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const RowOf<T, V, 2>& row, int64_t at) const {
    using M = NormMath<T>;
    Math<T> result[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const M distance = static_cast<M>(load_number(row[1].of[v])) - of[v].mean;
      const M centred = of[v].factor * static_cast<M>(load_number(row[0].of[v])) - of[v].offset;
      result[v] = static_cast<Math<T>>(centred - distance * of[v].slope);
    }
    store_row(dx, at, result);
  }
};

template <class T>
Prepared groups_gradient_kernel(const KernelCall& call, const cpu::Groups& plan) {
  using Table = LineTable<GroupGradientLine<T>, NormMath<T>>;
  const ChannelWalk sums = walk_for_sums<T>(plan.plane, plan.channels, plan.batch);
  const ChannelWalk elements = walk_for_elements<T>(plan.plane, plan.channels, plan.batch);
  const int64_t count = plan.batch * plan.channels;
  const size_t of_lines_at = room_for_lines(sums, FinishGroupGradient<T>::kSums);
  const size_t lines_at = of_lines_at + static_cast<size_t>(2 * count) * sizeof(double);
  const auto body = [=, shape = GroupLines<T>(plan), scale = call.inputs[2].dtype,
                     d_scale = type_of(call, 1),
                     d_bias = type_of(call, 2)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    T* dx = buffers.out<T>(0);
    GroupLines<T> g = shape;
    g.x = x;
    auto* d_scales = reinterpret_cast<double*>(buffers.workspace + of_lines_at);
    const Table lines(buffers.workspace + lines_at, count);
    run_sums<T>(stream, GroupGradientSums<T>{{dy, x}, g}, sums, buffers.workspace);
    const FinishGroupGradient<T> finish{
        g, {buffers.inputs[2], scale}, lines, d_scales, d_scales + count};
    run_merge(stream, finish, g, sums, buffers.workspace);
    for_each(stream, g.channels,
             SumOverBatch{d_scales,
                          d_scales + count,
                          g.images,
                          g.channels,
                          {buffers.out<std::byte>(1), d_scale},
                          {buffers.out<std::byte>(2), d_bias}});
    if (dx != nullptr) run_elements<T>(stream, GroupInputGradient<T>{{dy, x}, dx, lines}, elements);
  };
  return make_kernel(body, lines_at + Table::bytes(count),
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

// --- rows ----------------------------------------------------------------------------------------

Prepared prepare_groups(const KernelCall& call) {
  cpu::Groups plan;
  if (std::string why = cpu::plan_group_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return groups_kernel<T>(call, plan); });
}

Prepared prepare_groups_gradient(const KernelCall& call) {
  cpu::Groups plan;
  if (std::string why = cpu::plan_group_norm_grad(call, plan); !why.empty())
    return Prepared::no(why);
  return for_region_type(call.inputs[1].dtype,
                         [&]<class T>() { return groups_gradient_kernel<T>(call, plan); });
}

BlockedOperands group_operands(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  return all_channels_last(call, 0b1, 0b1);
}
BlockedOperands group_gradient_operands(const KernelCall& call) {
  if (!is_region_type(call.inputs[1].dtype)) return {};
  return all_channels_last(call, 0b11, outputs_there(call, {0}));
}

}  // namespace

std::vector<BlockedRow> channels_last_group_norm() {
  constexpr std::string_view kPlain = "own.group_norm", kName = "channels_last.group_norm";
  return {
      {{"", "GroupNormalization", kName, prepare_groups}, kPlain, group_operands},
      {{"", "InstanceNormalization", kName, prepare_groups}, kPlain, group_operands},
      {{"ai.halfnote", "GroupNormalizationGrad", kName, prepare_groups_gradient},
       kPlain,
       group_gradient_operands},
  };
}

}  // namespace halfnote::HN_CUDA
