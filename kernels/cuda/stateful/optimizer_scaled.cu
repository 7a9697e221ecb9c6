// The optimizers whose step size follows from norms of whole tensors: LAMB and Adafactor. Norms
// and means are summed in f64, a chunk a block, the chunks of a tensor in order. All parameters go
// through a launch together: what shares a step, the norms of chunks, the factor of each parameter,
// the parameters.
#include "kernels/cpu/stateful/optimizer_scaled.h"

#include "kernels/cuda/stateful/optimizer.h"

namespace halfnote::HN_CUDA {

namespace {

/// The elements of a parameter, and its first chunk. A segment with this `place` says
/// `norms(rule, i, a, b)`, the two numbers of element i whose squares are summed,
/// `factor(rule, a, b)` from these sums, and `move(rule, factor, i)`.
struct NormPlace {
  int64_t count, first_chunk;
};

/// For each chunk the sums of squares of the two numbers of its elements. parts: (2, chunks).
template <class Segment, class Rule>
__global__ void __launch_bounds__(kBlock)
    square_chunks(const Segment* segments, const Chunk* chunks, const Rule* rule, double* parts) {
  const Chunk chunk = chunks[blockIdx.x];
  const Segment s = segments[chunk.segment];
  const int64_t begin = chunk.index * kChunk;
  const int64_t end = begin + kChunk < s.place.count ? begin + kChunk : s.place.count;
  double first = 0, second = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    double a = 0, b = 0;
    s.norms(*rule, i, a, b);
    first += a * a;
    second += b * b;
  }
  first = merge_block<AddNumbers, kBlock>(first);
  second = merge_block<AddNumbers, kBlock>(second);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = first;
  parts[gridDim.x + blockIdx.x] = second;
}

/// The factor of each segment from the sums of its chunks, a block a segment.
template <class Segment, class Rule>
__global__ void __launch_bounds__(kBlock)
    find_factors(const Segment* segments, const Rule* rule, const double* parts, int64_t chunks,
                 double* factors) {
  const Segment s = segments[blockIdx.x];
  const int64_t end = s.place.first_chunk + (s.place.count + kChunk - 1) / kChunk;
  double first = 0, second = 0;
  for (int64_t i = s.place.first_chunk + threadIdx.x; i < end; i += kBlock) {
    first += parts[i];
    second += parts[chunks + i];
  }
  first = merge_block<AddNumbers, kBlock>(first);
  second = merge_block<AddNumbers, kBlock>(second);
  if (threadIdx.x == 0) factors[blockIdx.x] = s.factor(*rule, first, second);
}

template <class Segment, class Rule>
__global__ void __launch_bounds__(kBlock) move_chunks(const Segment* segments, const Chunk* chunks,
                                                      const Rule* rule, const double* factors) {
  const Chunk chunk = chunks[blockIdx.x];
  const Segment s = segments[chunk.segment];
  const double factor = factors[chunk.segment];
  const int64_t begin = chunk.index * kChunk;
  const int64_t end = begin + kChunk < s.place.count ? begin + kChunk : s.place.count;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) s.move(*rule, factor, i);
}

/// How the workspace of a group is cut up: what a step shares, two sums a chunk, a factor a
/// segment, then what the optimizer has beside.
struct NormRoom {
  size_t parts, factors, bytes;
  int64_t chunks, segments;

  NormRoom(size_t rule_bytes, const UpdateGroup& group)
      : parts(rule_bytes), segments(static_cast<int64_t>(group.members().size())) {
    chunks = 0;
    for (const int64_t count : group.chunks()) chunks += count;
    factors = parts + 2 * static_cast<size_t>(chunks) * sizeof(double);
    bytes = factors + static_cast<size_t>(segments) * sizeof(double);
  }
};

/// Norms, factors and parameters of a group, whose elementwise chunks are those of launch 0.
template <class Segment, class Rule>
void move_by_norms(const KernelBuffers& buffers, const TableForm& table, const NormRoom& room,
                   const Rule* rule) {
  Stream& stream = stream_of(buffers);
  const Segment* segments = table.segments<Segment>(buffers);
  const Chunk* chunks = table.chunks(buffers);
  auto* parts = reinterpret_cast<double*>(buffers.workspace + room.parts);
  auto* factors = reinterpret_cast<double*>(buffers.workspace + room.factors);
  launch(stream, square_chunks<Segment, Rule>, table.blocks(0), kBlock, 0, segments, chunks, rule,
         parts);
  launch(stream, find_factors<Segment, Rule>, static_cast<unsigned>(room.segments), kBlock, 0,
         segments, rule, parts, room.chunks, factors);
  launch(stream, move_chunks<Segment, Rule>, table.blocks(0), kBlock, 0, segments, chunks, rule,
         factors);
}

/// A rule and the learning rate.
template <class Rule>
struct Shared {
  Rule rule;
  double rate;
};

template <class Settings, class Rule>
struct SharedRule {
  Settings settings;
  __device__ Shared<Rule> operator()(double lr, double step) const {
    return {settings(lr, step), lr};
  }
};

template <class T>
struct LambRule {
  math::AdamSettings adam;
  bool rate_corrects;
  __device__ math::LambStep<T> operator()(double, double step) const {
    return math::lamb_step<T>(adam, step, rate_corrects);
  }
};

template <class T>
using LambShared = Shared<math::LambStep<T>>;

template <class T>
struct LambSegment {
  NormPlace place;
  Update<T> u;
  Slot<T> first, second;
  double min_ratio, max_ratio;

  /// The new moments, and what the norms are of.
  __device__ void norms(const LambShared<T>& shared, int64_t i, double& param,
                        double& direction) const {
    T m = first.read(i), v = second.read(i);
    if (u.moves()) {
      shared.rule.moments(u.grad[i], m, v);
      param = static_cast<double>(u.param[i]);
      direction = static_cast<double>(shared.rule.direction(u.param[i], m, v));
    }
    first.write(i, m);
    second.write(i, v);
  }
  __device__ double factor(const LambShared<T>& shared, double param, double direction) const {
    const double ratio =
        math::lamb_ratio(math::sqrt(param), math::sqrt(direction), min_ratio, max_ratio);
    return shared.rate * shared.rule.rate * ratio;
  }
  __device__ void move(const LambShared<T>& shared, double factor, int64_t i) const {
    T p = u.param[i];
    if (u.moves()) {
      const auto rate = static_cast<T>(factor);
      p = p - rate * shared.rule.direction(p, first.fresh[i], second.fresh[i]);
    }
    u.write(i, p);
  }
};

Prepared prepare_lamb(std::span<const KernelCall> calls) {
  const GroupOrReason made = group_of(calls, {2, true});
  if (!made.why.empty()) return Prepared::no(made.why);
  const cpu::LambPlan plan = cpu::lamb_plan(calls[0]);
  return cpu::for_state_type(calls[0].inputs[0].dtype, [&]<class T>() {
    const UpdateGroup& group = made.group;
    const TableForm table(sizeof(LambSegment<T>), {group.chunks()});
    const NormRoom room(sizeof(LambShared<T>), group);
    const auto write = [=](const KernelBuffers& buffers, std::byte* to) {
      std::vector<LambSegment<T>> segments;
      int64_t chunks = 0;
      for (const auto& member : group.members()) {
        const Segment<T> s(member, buffers);
        segments.push_back(
            {{s.count, chunks}, s.u, s.slots[0], s.slots[1], plan.min_ratio, plan.max_ratio});
        chunks += chunks_of(s.count);
      }
      table.write<LambSegment<T>>(segments, to);
    };
    using Settings = SharedRule<LambRule<T>, math::LambStep<T>>;
    const Settings settings{{plan.adam, plan.rate_corrects}};
    const auto run = [=, signature = group.members()[0].signature](const KernelBuffers& buffers) {
      const auto* shared = make_rule<T, LambShared<T>>(buffers, signature, settings);
      move_by_norms<LambSegment<T>>(buffers, table, room, shared);
    };
    return make_table_kernel(table.bytes(), room.bytes, run, write, group.sharing());
  });
}

struct AdafactorRule {
  double decay_rate, decay;
  bool relative;
  __device__ math::AdafactorStep operator()(double lr, double step) const {
    return math::adafactor_step(lr, step, decay_rate, relative, decay);
  }
};

using AdafactorShared = Shared<math::AdafactorStep>;

/// A parameter as matrices of (rows, columns), with a running mean a row and a column; if it is not
/// factored a running mean an element, `row`.
template <class T>
struct AdafactorSegment {
  NormPlace place;
  Update<T> u;
  Slot<T> row, column;
  int64_t matrices, rows, columns;
  Divisor by_rows, by_columns;
  int64_t slice_rows, slices;  // rows whose columns a thread sums
  double* means;               // of the row means of each matrix; null: not factored
  double* sums;                // of columns: (slices, matrices · columns)
  T epsilon;
  double epsilon_param, clip;
  bool scaled;

  __device__ T square(int64_t i) const { return math::AdafactorStep::square(u.grad[i], epsilon); }
  /// The update of an element, before its factor.
  __device__ T update(int64_t i) const {
    if (means == nullptr) return u.grad[i] / math::sqrt(row.fresh[i]);
    const int64_t r = by_columns.quotient(i), k = by_rows.quotient(r);
    const int64_t at = k * columns + (i - r * columns);
    return math::AdafactorStep::factored(u.grad[i], row.fresh[r], means[k], column.fresh[at]);
  }
  __device__ void norms(const AdafactorShared&, int64_t i, double& param, double& moved) const {
    if (!u.moves()) return;
    param = static_cast<double>(u.param[i]);
    moved = static_cast<double>(update(i));
  }
  __device__ double factor(const AdafactorShared& shared, double param, double moved) const {
    const auto n = static_cast<double>(place.count > 1 ? place.count : 1);
    return shared.rule.scale(math::sqrt(param / n), math::sqrt(moved / n), scaled, epsilon_param,
                             clip);
  }
  __device__ void move(const AdafactorShared& shared, double factor, int64_t i) const {
    T p = u.param[i];
    if (u.moves()) p = p * static_cast<T>(shared.rule.keep) - static_cast<T>(factor) * update(i);
    u.write(i, p);
  }
};

// What a block does of a segment.
constexpr int64_t kRowsOfBlock = 8, kMatricesOfBlock = 16, kColumnsOfBlock = kBlock;

int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

/// The running means of rows, one after the other.
template <class T>
__global__ void __launch_bounds__(kBlock)
    move_rows(const AdafactorSegment<T>* segments, const Chunk* chunks,
              const AdafactorShared* shared) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdafactorSegment<T> f = segments[chunk.segment];
  const int64_t all = f.matrices * f.rows, begin = chunk.index * kRowsOfBlock;
  for (int64_t r = begin; r < begin + kRowsOfBlock && r < all; ++r) {
    double sum = 0;
    if (f.u.moves()) {
      for (int64_t c = threadIdx.x; c < f.columns; c += kBlock) {
        sum += static_cast<double>(f.square(r * f.columns + c));
      }
    }
    sum = merge_block<AddNumbers, kBlock>(sum);
    if (threadIdx.x != 0) continue;
    const T old = f.row.old[r];
    f.row.fresh[r] = f.u.moves() ? shared->rule.mean(old, sum, f.columns) : old;
  }
}

/// The sums of columns over slices of their rows.
template <class T>
__global__ void __launch_bounds__(kBlock)
    sum_columns(const AdafactorSegment<T>* segments, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdafactorSegment<T> f = segments[chunk.segment];
  const int64_t all_columns = f.matrices * f.columns;
  const int64_t at = chunk.index * kColumnsOfBlock + threadIdx.x;
  if (at >= f.slices * all_columns) return;
  const int64_t slice = at / all_columns, k = at % all_columns;
  const int64_t begin = slice * f.slice_rows;
  const int64_t end = begin + f.slice_rows < f.rows ? begin + f.slice_rows : f.rows;
  const int64_t first = k / f.columns * f.rows * f.columns + k % f.columns;
  double sum = 0;
  if (f.u.moves()) {
    for (int64_t r = begin; r < end; ++r) {
      sum += static_cast<double>(f.square(first + r * f.columns));
    }
  }
  f.sums[at] = sum;
}

/// The running means of columns from their slices, in order.
template <class T>
__global__ void __launch_bounds__(kBlock)
    move_columns(const AdafactorSegment<T>* segments, const Chunk* chunks,
                 const AdafactorShared* shared) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdafactorSegment<T> f = segments[chunk.segment];
  const int64_t all_columns = f.matrices * f.columns;
  const int64_t k = chunk.index * kColumnsOfBlock + threadIdx.x;
  if (k >= all_columns) return;
  double sum = 0;
  for (int64_t s = 0; s < f.slices; ++s) sum += f.sums[s * all_columns + k];
  const T old = f.column.old[k];
  f.column.fresh[k] = f.u.moves() ? shared->rule.mean(old, sum, f.rows) : old;
}

/// The means of the row means of matrices, one after the other.
template <class T>
__global__ void __launch_bounds__(kBlock)
    mean_of_rows(const AdafactorSegment<T>* segments, const Chunk* chunks) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdafactorSegment<T> f = segments[chunk.segment];
  const int64_t begin = chunk.index * kMatricesOfBlock;
  for (int64_t k = begin; k < begin + kMatricesOfBlock && k < f.matrices; ++k) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < f.rows; r += kBlock) {
      sum += static_cast<double>(f.row.fresh[k * f.rows + r]);
    }
    sum = merge_block<AddNumbers, kBlock>(sum);
    if (threadIdx.x == 0) f.means[k] = sum / static_cast<double>(f.rows);
  }
}

/// The running means of the squares of elements.
template <class T>
__global__ void __launch_bounds__(kBlock)
    move_elements(const AdafactorSegment<T>* segments, const Chunk* chunks,
                  const AdafactorShared* shared) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdafactorSegment<T> f = segments[chunk.segment];
  const int64_t begin = chunk.index * kChunk;
  const int64_t end = begin + kChunk < f.place.count ? begin + kChunk : f.place.count;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    const T old = f.row.old[i];
    f.row.fresh[i] = f.u.moves() ? shared->rule.moved(old, f.square(i)) : old;
  }
}

/// A parameter of Adafactor, and where what it has beside is in the workspace.
struct FactoredMember {
  cpu::AdafactorPlan plan;
  int64_t slice_rows = 0, slices = 0;
  size_t means = 0, sums = 0;  // offsets

  FactoredMember(const cpu::AdafactorPlan& of, size_t& room) : plan(of) {
    if (!plan.factored) return;
    constexpr int64_t kSliceRows = 64, kMostSlices = 256;
    slice_rows = std::max(kSliceRows, parts_of(plan.rows, kMostSlices));
    slices = parts_of(plan.rows, slice_rows);
    means = room;
    sums = means + static_cast<size_t>(plan.matrices) * sizeof(double);
    room = sums + static_cast<size_t>(slices * plan.matrices * plan.columns) * sizeof(double);
  }
};

/// The chunks of each launch: elements, rows, slices of columns, columns, matrices.
enum AdafactorLaunch : size_t { kElements, kRows, kSlices, kColumns, kMatrices };

std::vector<std::vector<int64_t>> adafactor_launches(const UpdateGroup& group,
                                                     const std::vector<FactoredMember>& members) {
  std::vector<std::vector<int64_t>> launches = {group.chunks(), {}, {}, {}, {}};
  for (const auto& [plan, slice_rows, slices, means, sums] : members) {
    if (!plan.factored) continue;
    const int64_t all_columns = plan.matrices * plan.columns;
    launches[kRows].push_back(parts_of(plan.matrices * plan.rows, kRowsOfBlock));
    launches[kSlices].push_back(parts_of(slices * all_columns, kColumnsOfBlock));
    launches[kColumns].push_back(parts_of(all_columns, kColumnsOfBlock));
    launches[kMatrices].push_back(parts_of(plan.matrices, kMatricesOfBlock));
  }
  return launches;
}

template <class T>
std::vector<AdafactorSegment<T>> adafactor_segments(const UpdateGroup& group,
                                                    const std::vector<FactoredMember>& members,
                                                    const KernelBuffers& buffers) {
  std::vector<AdafactorSegment<T>> segments;
  int64_t chunks = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const Segment<T> s(group.members()[i], buffers);
    const FactoredMember& m = members[i];
    const cpu::AdafactorPlan& plan = m.plan;
    const auto beside = [&](size_t offset) {
      return plan.factored ? reinterpret_cast<double*>(buffers.workspace + offset) : nullptr;
    };
    segments.push_back({{s.count, chunks},
                        s.u,
                        s.slots[0],
                        s.slots[1],
                        plan.matrices,
                        plan.rows,
                        plan.columns,
                        Divisor(plan.rows),
                        Divisor(plan.columns),
                        m.slice_rows,
                        m.slices,
                        beside(m.means),
                        beside(m.sums),
                        static_cast<T>(plan.epsilon),
                        plan.epsilon_param,
                        plan.clip,
                        plan.scaled});
    chunks += chunks_of(s.count);
  }
  return segments;
}

/// Moves the running means: four launches if they are factored, else one.
template <class T>
void move_means(const KernelBuffers& buffers, const TableForm& table, bool factored,
                const AdafactorShared* shared) {
  Stream& stream = stream_of(buffers);
  const auto* segments = table.segments<AdafactorSegment<T>>(buffers);
  const auto chunks = [&](size_t k) { return table.chunks(buffers, k); };
  if (!factored) {
    launch(stream, move_elements<T>, table.blocks(kElements), kBlock, 0, segments,
           chunks(kElements), shared);
    return;
  }
  launch(stream, move_rows<T>, table.blocks(kRows), kBlock, 0, segments, chunks(kRows), shared);
  launch(stream, sum_columns<T>, table.blocks(kSlices), kBlock, 0, segments, chunks(kSlices));
  launch(stream, move_columns<T>, table.blocks(kColumns), kBlock, 0, segments, chunks(kColumns),
         shared);
  launch(stream, mean_of_rows<T>, table.blocks(kMatrices), kBlock, 0, segments, chunks(kMatrices));
}

Prepared prepare_adafactor(std::span<const KernelCall> calls) {
  UpdateGroup group;
  std::vector<cpu::AdafactorPlan> plans(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    Signature signature;
    if (std::string why = cpu::plan_adafactor(calls[i], plans[i], signature); !why.empty())
      return Prepared::no(why);
    if (plans[i].factored != plans[0].factored ||
        calls[i].inputs[0].dtype != calls[0].inputs[0].dtype)
      return Prepared::no("parameters that are updated in different ways");
    group.add(calls[i], signature);
  }
  const NormRoom room(sizeof(AdafactorShared), group);
  size_t bytes = room.bytes;
  std::vector<FactoredMember> members;
  for (const cpu::AdafactorPlan& plan : plans) members.emplace_back(plan, bytes);
  return cpu::for_state_type(calls[0].inputs[0].dtype, [&]<class T>() {
    const TableForm table(sizeof(AdafactorSegment<T>), adafactor_launches(group, members));
    const auto write = [=](const KernelBuffers& buffers, std::byte* to) {
      table.write<AdafactorSegment<T>>(adafactor_segments<T>(group, members, buffers), to);
    };
    const cpu::AdafactorPlan plan = plans[0];
    const SharedRule<AdafactorRule, math::AdafactorStep> settings{
        {plan.decay_rate, plan.decay, plan.relative}};
    const auto run = [=, signature = group.members()[0].signature](const KernelBuffers& buffers) {
      const auto* shared = make_rule<T, AdafactorShared>(buffers, signature, settings);
      move_means<T>(buffers, table, plan.factored, shared);
      move_by_norms<AdafactorSegment<T>>(buffers, table, room, shared);
    };
    return make_table_kernel(table.bytes(), bytes, run, write, group.sharing());
  });
}

}  // namespace

std::vector<KernelRow> scaled_optimizer_rows() {
  return {group_row<prepare_adafactor>("Adafactor", 2), group_row<prepare_lamb>("Lamb", 2)};
}

}  // namespace halfnote::HN_CUDA
