// The optimizers whose step size follows from norms of whole tensors: LAMB and Adafactor. Norms
// and means are summed in f64, a slice a block, the slices in order.
#include "kernels/cpu/stateful/optimizer_scaled.h"

#include "kernels/cuda/stateful/optimizer.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int64_t kSumSlice = 16384;  // elements of a block

/// For each slice the sums of squares of the two numbers that `body(i, a, b)` gives of an element.
/// parts: (2, slices).
template <class Body>
__global__ void __launch_bounds__(kBlock) square_pairs(Body body, int64_t count, double* parts) {
  const int64_t begin = int64_t{blockIdx.x} * kSumSlice;
  const int64_t end = begin + kSumSlice < count ? begin + kSumSlice : count;
  double first = 0, second = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    double a = 0, b = 0;
    body(i, a, b);
    first += a * a;
    second += b * b;
  }
  first = merge_block<AddNumbers, kBlock>(first);
  second = merge_block<AddNumbers, kBlock>(second);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = first;
  parts[gridDim.x + blockIdx.x] = second;
}

/// Calls `finish(first, second)` with the sums over all slices.
template <class Finish>
__global__ void __launch_bounds__(kBlock)
    finish_pairs(Finish finish, const double* parts, int64_t slices) {
  double first = 0, second = 0;
  for (int64_t i = threadIdx.x; i < slices; i += kBlock) {
    first += parts[i];
    second += parts[slices + i];
  }
  first = merge_block<AddNumbers, kBlock>(first);
  second = merge_block<AddNumbers, kBlock>(second);
  if (threadIdx.x == 0) finish(first, second);
}

template <class Body, class Finish>
void sum_squares(Stream& stream, int64_t count, double* parts, const Body& body,
                 const Finish& finish) {
  const unsigned slices = blocks_for(count, kSumSlice);
  launch(stream, square_pairs<Body>, slices, kBlock, 0, body, count, parts);
  launch(stream, finish_pairs<Finish>, 1, kBlock, 0, finish, parts, slices);
}

size_t bytes_of_sums(int64_t count) {
  return 2 * static_cast<size_t>(blocks_for(count, kSumSlice)) * sizeof(double);
}

/// What is known of a step before it ends, the workspace's first bytes.
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

/// The new moments, and what the norms are of.
template <class T>
struct LambMoments {
  Update<T> u;
  Slot<T> first, second;
  const LambShared<T>* shared;
  __device__ void operator()(int64_t i, double& param, double& direction) const {
    T m = first.read(i), v = second.read(i);
    if (u.moves()) {
      shared->rule.moments(u.grad[i], m, v);
      param = static_cast<double>(u.param[i]);
      direction = static_cast<double>(shared->rule.direction(u.param[i], m, v));
    }
    first.write(i, m);
    second.write(i, v);
  }
};

template <class T>
struct LambRate {
  double min_ratio, max_ratio;
  LambShared<T>* shared;
  __device__ void operator()(double param, double direction) const {
    const double ratio =
        math::lamb_ratio(math::sqrt(param), math::sqrt(direction), min_ratio, max_ratio);
    shared->rate = shared->rate * shared->rule.rate * ratio;
  }
};

template <class T>
struct LambElement {
  Update<T> u;
  const T *first, *second;  // the new ones
  const LambShared<T>* shared;
  __device__ void operator()(int64_t i) const {
    T p = u.param[i];
    if (u.moves()) {
      const auto rate = static_cast<T>(shared->rate);
      p = p - rate * shared->rule.direction(p, first[i], second[i]);
    }
    u.write(i, p);
  }
};

Prepared prepare_lamb(const KernelCall& call) {
  const Signature signature{2, true};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const cpu::LambPlan plan = cpu::lamb_plan(call);
  const int64_t count = call.inputs[0].size();
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    using Settings = SharedRule<LambRule<T>, math::LambStep<T>>;
    const Settings settings{{plan.adam, plan.rate_corrects}};
    const auto body = [=, form = UpdateForm(call, signature)](const KernelBuffers& buffers) {
      auto* shared = make_rule<T, LambShared<T>>(buffers, signature, settings, buffers.workspace);
      auto* parts = reinterpret_cast<double*>(buffers.workspace + sizeof(LambShared<T>));
      const Update<T> u = form.update<T>(buffers);
      const Slot<T> m{buffers.in<T>(2), buffers.out<T>(1)}, v{buffers.in<T>(3), buffers.out<T>(2)};
      sum_squares(stream_of(buffers), count, parts, LambMoments<T>{u, m, v, shared},
                  LambRate<T>{plan.min_ratio, plan.max_ratio, shared});
      for_each(stream_of(buffers), count, LambElement<T>{u, m.fresh, v.fresh, shared});
    };
    return make_kernel(body, sizeof(LambShared<T>) + bytes_of_sums(count), shares_old(signature));
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

/// Where the tensors of Adafactor are: matrices of (rows, columns), a running mean a row and a
/// column; if not factored a running mean an element, `row`.
template <class T>
struct Factors {
  Update<T> u;
  Slot<T> row, column;
  int64_t rows, columns;
  T epsilon;
  AdafactorShared* shared;

  __device__ T square(int64_t i) const { return math::AdafactorStep::square(u.grad[i], epsilon); }
};

/// The running mean of a row, a block a row.
template <class T>
__global__ void __launch_bounds__(kBlock) move_rows(Factors<T> f, int64_t all_rows) {
  for (int64_t r = blockIdx.x; r < all_rows; r += gridDim.x) {
    double sum = 0;
    if (f.u.moves()) {
      for (int64_t c = threadIdx.x; c < f.columns; c += kBlock) {
        sum += static_cast<double>(f.square(r * f.columns + c));
      }
    }
    sum = merge_block<AddNumbers, kBlock>(sum);
    if (threadIdx.x != 0) continue;
    const T old = f.row.old[r];
    f.row.fresh[r] = f.u.moves() ? f.shared->rule.mean(old, sum, f.columns) : old;
  }
}

/// The sum of a column over a slice of its rows; parts: (slices, matrices · columns).
template <class T>
struct SumColumns {
  Factors<T> f;
  int64_t slice_rows, all_columns;
  double* parts;
  __device__ void operator()(int64_t at) const {
    const int64_t slice = at / all_columns, k = at % all_columns;
    const int64_t begin = slice * slice_rows;
    const int64_t end = begin + slice_rows < f.rows ? begin + slice_rows : f.rows;
    const int64_t first = k / f.columns * f.rows * f.columns + k % f.columns;
    double sum = 0;
    if (f.u.moves()) {
      for (int64_t r = begin; r < end; ++r) {
        sum += static_cast<double>(f.square(first + r * f.columns));
      }
    }
    parts[at] = sum;
  }
};

/// The running mean of a column from its slices, in order.
template <class T>
struct MoveColumns {
  Factors<T> f;
  int64_t slices, all_columns;
  const double* parts;
  __device__ void operator()(int64_t k) const {
    double sum = 0;
    for (int64_t s = 0; s < slices; ++s) sum += parts[s * all_columns + k];
    const T old = f.column.old[k];
    f.column.fresh[k] = f.u.moves() ? f.shared->rule.mean(old, sum, f.rows) : old;
  }
};

/// The mean of the row means of a matrix, a block a matrix.
template <class T>
__global__ void __launch_bounds__(kBlock)
    mean_of_rows(const T* row, int64_t rows, int64_t matrices, double* means) {
  for (int64_t k = blockIdx.x; k < matrices; k += gridDim.x) {
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += kBlock) {
      sum += static_cast<double>(row[k * rows + r]);
    }
    sum = merge_block<AddNumbers, kBlock>(sum);
    if (threadIdx.x == 0) means[k] = sum / static_cast<double>(rows);
  }
}

/// The running mean of one element's square.
template <class T>
struct MoveElement {
  Factors<T> f;
  __device__ void operator()(int64_t i) const {
    const T old = f.row.old[i];
    f.row.fresh[i] = f.u.moves() ? f.shared->rule.moved(old, f.square(i)) : old;
  }
};

/// The update of an element, before its factor.
template <class T>
struct AdafactorUpdate {
  Factors<T> f;
  const double* means;  // null: not factored
  Divisor rows, columns;

  __device__ T operator[](int64_t i) const {
    if (means == nullptr) return f.u.grad[i] / math::sqrt(f.row.fresh[i]);
    const int64_t r = columns.quotient(i), k = rows.quotient(r);
    const int64_t column = k * f.columns + (i - r * f.columns);
    return math::AdafactorStep::factored(f.u.grad[i], f.row.fresh[r], means[k],
                                         f.column.fresh[column]);
  }
  __device__ void operator()(int64_t i, double& param, double& update) const {
    if (!f.u.moves()) return;
    param = static_cast<double>(f.u.param[i]);
    update = static_cast<double>((*this)[i]);
  }
};

struct AdafactorRate {
  int64_t count;
  double epsilon, clip;
  bool scaled;
  AdafactorShared* shared;
  __device__ void operator()(double param, double update) const {
    const auto n = static_cast<double>(count > 1 ? count : 1);
    shared->rate =
        shared->rule.scale(math::sqrt(param / n), math::sqrt(update / n), scaled, epsilon, clip);
  }
};

template <class T>
struct AdafactorElement {
  AdafactorUpdate<T> update;
  __device__ void operator()(int64_t i) const {
    const Factors<T>& f = update.f;
    T p = f.u.param[i];
    if (f.u.moves()) {
      p = p * static_cast<T>(f.shared->rule.keep) - static_cast<T>(f.shared->rate) * update[i];
    }
    f.u.write(i, p);
  }
};

/// How the workspace of Adafactor is cut up.
struct AdafactorRoom {
  int64_t slice_rows, slices, all_columns;
  size_t means, columns, bytes;  // offsets; the whole

  AdafactorRoom(const cpu::AdafactorPlan& plan, int64_t count) {
    constexpr int64_t kSliceRows = 64, kMostSlices = 256;
    slice_rows = std::max(kSliceRows, (plan.rows + kMostSlices - 1) / kMostSlices);
    slices = (plan.rows + slice_rows - 1) / slice_rows;
    all_columns = plan.matrices * plan.columns;
    means = sizeof(AdafactorShared) + bytes_of_sums(count);
    columns = means + static_cast<size_t>(plan.matrices) * sizeof(double);
    bytes = columns + static_cast<size_t>(slices * all_columns) * sizeof(double);
  }
};

/// Moves the means of rows and columns, and gives the means of the former.
template <class T>
const double* move_factors(const cpu::AdafactorPlan& plan, const AdafactorRoom& room,
                           const Factors<T>& f, const KernelBuffers& buffers) {
  Stream& stream = stream_of(buffers);
  const auto blocks = [](int64_t n) { return static_cast<unsigned>(std::min(n, kMaxBlocks)); };
  auto* means = reinterpret_cast<double*>(buffers.workspace + room.means);
  auto* parts = reinterpret_cast<double*>(buffers.workspace + room.columns);
  const int64_t all_rows = plan.matrices * plan.rows;
  launch(stream, move_rows<T>, blocks(all_rows), kBlock, 0, f, all_rows);
  for_each(stream, room.slices * room.all_columns,
           SumColumns<T>{f, room.slice_rows, room.all_columns, parts});
  for_each(stream, room.all_columns, MoveColumns<T>{f, room.slices, room.all_columns, parts});
  launch(stream, mean_of_rows<T>, blocks(plan.matrices), kBlock, 0, f.row.fresh, plan.rows,
         plan.matrices, means);
  return means;
}

Prepared prepare_adafactor(const KernelCall& call) {
  cpu::AdafactorPlan plan;
  Signature signature;
  if (std::string why = cpu::plan_adafactor(call, plan, signature); !why.empty())
    return Prepared::no(why);
  const int64_t count = call.inputs[0].size();
  const AdafactorRoom room(plan, count);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const SharedRule<AdafactorRule, math::AdafactorStep> settings{
        {plan.decay_rate, plan.decay, plan.relative}};
    const auto body = [=, form = UpdateForm(call, signature)](const KernelBuffers& buffers) {
      auto* shared = make_rule<T, AdafactorShared>(buffers, signature, settings, buffers.workspace);
      auto* parts = reinterpret_cast<double*>(buffers.workspace + sizeof(AdafactorShared));
      Factors<T> f{form.update<T>(buffers),
                   {buffers.in<T>(2), buffers.out<T>(1)},
                   {},
                   plan.rows,
                   plan.columns,
                   static_cast<T>(plan.epsilon),
                   shared};
      const double* means = nullptr;
      if (plan.factored) {
        f.column = {buffers.in<T>(3), buffers.out<T>(2)};
        means = move_factors(plan, room, f, buffers);
      } else {
        for_each(stream_of(buffers), count, MoveElement<T>{f});
      }
      const AdafactorUpdate<T> update{f, means, Divisor(plan.rows), Divisor(plan.columns)};
      sum_squares(stream_of(buffers), count, parts, update,
                  AdafactorRate{count, plan.epsilon_param, plan.clip, plan.scaled, shared});
      for_each(stream_of(buffers), count, AdafactorElement<T>{update});
    };
    return make_kernel(body, room.bytes, shares_old(signature));
  });
}

}  // namespace

std::vector<KernelRow> scaled_optimizer_rows() {
  return {
      {"ai.halfnote", "Adafactor", "own.optimizer", prepare_adafactor},
      {"ai.halfnote", "Lamb", "own.optimizer", prepare_lamb},
  };
}

}  // namespace halfnote::HN_CUDA
