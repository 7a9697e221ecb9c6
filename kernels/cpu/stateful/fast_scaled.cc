// LAMB and Adafactor on f32 in vectors, in pieces that stay in the first-level cache. LAMB reads
// memory twice, Adafactor three times (twice where the moment is not factored): the step of an
// element follows from norms of the whole tensor. The gradient is read in its own type, piece by
// piece, and the 16-bit copy is written with the parameter.
//
// Elements have the bits of the reference; norms and means are summed in f64 in another order,
// that of blocks of fixed size: the same bits on any number of threads.
#include <array>
#include <cmath>

#include "kernels/cpu/best_loops.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/stateful/optimizer_scaled.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/stateful/update_loops.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

const UpdateLoops* update_loops() {
  return best_loops<kAvx512UpdateLoops, kAvx2UpdateLoops, UpdateLoops>(nullptr);
}

namespace {

/// Elements that are processed at a time.
constexpr int64_t kPiece = 2048;
using Room = std::array<float, kPiece>;

/// What both rules ask of a call: how the gradient comes, what is kept, the copy.
struct Update {
  KeptState kept;
  GradientForm form;
  CopyForm copy;
  int64_t count = 0;
  int threads = 1;
  const UpdateLoops* loops = nullptr;

  Update(const KernelCall& call, const Signature& signature)
      : kept(call, signature),
        form(gradient_form(call, signature)),
        copy(copy_form(call, signature)),
        count(call.inputs[0].size()),
        threads(call.threads),
        loops(update_loops()) {}

  /// Elements of the gradient in f32: where they are, or in `room`.
  const float* gradient(const KernelBuffers& buffers, int64_t at, int64_t size, Room& room) const {
    if (form.plain<float>()) return buffers.in<float>(1) + at;
    load_gradient(form, buffers, at, size, room.data());
    return room.data();
  }
  /// To be called when a piece of the new parameter is written.
  void write_copy(const KernelBuffers& buffers, int64_t at, int64_t size) const {
    if (!copy) return;
    store_copy(copy.dtype, buffers.out<float>(0) + at, at, size, buffers.outputs[copy.output]);
  }
  /// Gives the old state back if the step does not commit; else false.
  bool keeps(const KernelBuffers& buffers) const {
    if (!kept.keeps(buffers)) return false;
    copy_all(copy, buffers.in<float>(0), buffers, count, threads);
    return true;
  }
};

double sum_squares(const float* x, int64_t count) {
  return pointwise::vector_loops()->sum_squares(x, count);
}

/// Why there are no such kernels for this state; empty if there are.
std::string refusal(const KernelCall& call) {
  if (call.inputs[0].dtype != DType::kF32) return "state that is not f32";
  return update_loops() ? "" : "the CPU has neither AVX-512 nor AVX2 with FMA";
}

/// Calls `body(at, size)` for the pieces of [begin, end).
template <class Body>
void for_pieces(int64_t begin, int64_t end, Body&& body) {
  for (int64_t at = begin; at < end; at += kPiece) body(at, std::min(kPiece, end - at));
}

/// Sums of squares over a tensor: of the parameter and of its step.
struct Squares {
  double param = 0, step = 0;
};

Squares add_up(const Squares* parts, int64_t count) {
  Squares sum;
  for (int64_t i = 0; i < count; ++i) {
    sum.param += parts[i].param;
    sum.step += parts[i].step;
  }
  return sum;
}

// --- LAMB ---

LambNumbers lamb_numbers(const math::LambStep<float>& rule) {
  return {rule.beta1,   rule.one_minus_beta1, rule.beta2, rule.one_minus_beta2,
          rule.epsilon, rule.weight_decay,    rule.first, rule.second_root};
}

/// New moments, and the squares of parameter and direction.
Squares move_lamb(const Update& u, const LambNumbers& numbers, const KernelBuffers& buffers) {
  Squares* parts = part<Squares>(buffers, 0);
  parallel_blocks(u.count, kElementGrain, u.threads, [&](int64_t begin, int64_t end) {
    Room room, direction;
    Squares sum;
    for_pieces(begin, end, [&](int64_t at, int64_t size) {
      const float* param = buffers.in<float>(0) + at;
      u.loops->lamb_moments(numbers, param, u.gradient(buffers, at, size, room),
                            buffers.in<float>(2) + at, buffers.in<float>(3) + at, size,
                            buffers.out<float>(1) + at, buffers.out<float>(2) + at,
                            direction.data());
      sum.param += sum_squares(param, size);
      sum.step += sum_squares(direction.data(), size);
    });
    parts[begin / kElementGrain] = sum;
  });
  return add_up(parts, sum_blocks(u.count));
}

Prepared prepare_lamb(const KernelCall& call) {
  const Signature signature{2, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call); !why.empty()) return Prepared::no(why);
  const Update u(call, signature);
  const auto body = [u, plan = lamb_plan(call)](const KernelBuffers& buffers) {
    if (u.keeps(buffers)) return;
    const auto lr = static_cast<double>(*buffers.in<float>(4));
    const auto step = static_cast<double>(*buffers.in<int64_t>(5));
    const auto rule = math::lamb_step<float>(plan.adam, step, plan.rate_corrects);
    const LambNumbers numbers = lamb_numbers(rule);
    const Squares sum = move_lamb(u, numbers, buffers);
    const double ratio =
        math::lamb_ratio(std::sqrt(sum.param), std::sqrt(sum.step), plan.min_ratio, plan.max_ratio);
    const auto rate = static_cast<float>(lr * rule.rate * ratio);
    parallel_blocks(u.count, kElementGrain, u.threads, [&](int64_t begin, int64_t end) {
      u.loops->lamb_step(numbers, rate, buffers.in<float>(0) + begin, buffers.out<float>(1) + begin,
                         buffers.out<float>(2) + begin, end - begin, buffers.out<float>(0) + begin);
      u.write_copy(buffers, begin, end - begin);
    });
  };
  const auto workspace = static_cast<size_t>(sum_blocks(u.count)) * sizeof(Squares);
  return make_kernel(body, workspace,
                     [kept = u.kept](size_t in, size_t out) { return kept.can_share(in, out); });
}

// --- Adafactor ---

/// Rows of at least so many elements are vectors of their own.
constexpr int64_t kWideRow = 16;
/// A matrix is summed in at most so many parts, each with column sums of its own.
constexpr int64_t kMostParts = 32;

/// How the matrices of a factored parameter are gone through.
struct Factored {
  int64_t columns = 1, rows = 1, matrices = 1;
  int64_t parts = 1;                       // of a matrix
  int64_t part_rows = 1;                   // of all parts but the last
  size_t squares = 0, column_sums = 0;     // in the workspace
  size_t row_roots = 0, column_roots = 0;  // of row mean / mean of all, of column mean

  int64_t all_rows() const { return matrices * rows; }
  bool is_small() const {
    return columns < kWideRow && rows * columns > 0 && rows * columns <= kPiece / 2;
  }
  /// Rows of a parallel block.
  int64_t grain() const {
    return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  }
  int64_t blocks() const { return (all_rows() + grain() - 1) / grain(); }
};

Factored factored_of(const AdafactorPlan& plan, WorkspacePlan& workspace) {
  Factored f;
  f.columns = plan.columns;
  f.rows = plan.rows;
  f.matrices = plan.matrices;
  const int64_t wanted = std::clamp<int64_t>(f.rows * f.columns / kElementGrain, 1, kMostParts);
  f.part_rows = std::max<int64_t>(1, (f.rows + wanted - 1) / wanted);
  f.parts = std::max<int64_t>(1, (f.rows + f.part_rows - 1) / f.part_rows);
  f.squares = workspace.add_elements<Squares>(f.blocks());
  f.column_sums = workspace.add_elements<double>(f.matrices * f.parts * f.columns);
  f.row_roots = workspace.add_elements<float>(f.all_rows());
  f.column_roots = workspace.add_elements<float>(f.matrices * f.columns);
  return f;
}

/// One part of a matrix: its rows' means, its column sums.
void sum_part(const Update& u, const Factored& f, const math::AdafactorStep& rule, float epsilon,
              const KernelBuffers& buffers, int64_t index) {
  double* columns = part<double>(buffers, f.column_sums) + index * f.columns;
  std::fill_n(columns, f.columns, 0.0);
  const int64_t matrix = f.parts == 1 ? index * f.rows : index / f.parts * f.rows;
  const int64_t first = f.parts == 1 ? 0 : index % f.parts * f.part_rows;
  Room room;
  for (int64_t row = matrix + first; row < matrix + std::min(f.rows, first + f.part_rows); ++row) {
    double sum = 0;
    for_pieces(0, f.columns, [&](int64_t column, int64_t size) {
      const float* grad = u.gradient(buffers, row * f.columns + column, size, room);
      if (f.columns >= kWideRow) {
        sum += u.loops->add_squares(grad, size, epsilon, columns + column);
        return;
      }
      for (int64_t i = 0; i < size; ++i) {
        const auto square = static_cast<double>(rule.square(grad[i], epsilon));
        sum += square;
        columns[column + i] += square;
      }
    });
    buffers.out<float>(1)[row] = rule.mean(buffers.in<float>(2)[row], sum, f.columns);
  }
}

/// sum_part() for matrices [begin, end) that are so small that a piece holds several.
void sum_small(const Update& u, const Factored& f, const math::AdafactorStep& rule, float epsilon,
               const KernelBuffers& buffers, int64_t begin, int64_t end) {
  const int64_t size = f.rows * f.columns, together = kPiece / size;
  const float* old = buffers.in<float>(2);
  float* means = buffers.out<float>(1);
  Room room;
  for (int64_t first = begin; first < end; first += together) {
    const int64_t last = std::min(end, first + together);
    const float* grad = u.gradient(buffers, first * size, (last - first) * size, room);
    double* columns = part<double>(buffers, f.column_sums) + first * f.columns;
    for (int64_t row = first * f.rows; row < last * f.rows; columns += f.columns) {
      for (int64_t c = 0; c < f.columns; ++c) columns[c] = 0;
      for (const int64_t behind = row + f.rows; row < behind; ++row, grad += f.columns) {
        double sum = 0;
        for (int64_t c = 0; c < f.columns; ++c) {
          const auto square = static_cast<double>(rule.square(grad[c], epsilon));
          sum += square;
          columns[c] += square;
        }
        means[row] = rule.mean(old[row], sum, f.columns);
      }
    }
  }
}

/// New means of columns [begin, end) of all matrices, and their roots.
void move_columns(const Factored& f, const math::AdafactorStep& rule, const KernelBuffers& buffers,
                  int64_t begin, int64_t end) {
  const double* sums = part<double>(buffers, f.column_sums);
  for (int64_t i = begin; i < end; ++i) {
    double sum = f.parts == 1 ? sums[i] : 0;
    if (f.parts > 1) {
      const double* from = sums + i / f.columns * f.parts * f.columns + i % f.columns;
      for (int64_t p = 0; p < f.parts; ++p) sum += from[p * f.columns];
    }
    const float mean = rule.mean(buffers.in<float>(3)[i], sum, f.rows);
    buffers.out<float>(2)[i] = mean;
    part<float>(buffers, f.column_roots)[i] = std::sqrt(mean);
  }
}

/// The roots of a matrix's row means over the mean of these.
void find_row_roots(const Factored& f, const KernelBuffers& buffers, int64_t matrix) {
  const float* row = buffers.out<float>(1) + matrix * f.rows;
  double sum = 0;
  for (int64_t r = 0; r < f.rows; ++r) sum += static_cast<double>(row[r]);
  const auto mean = static_cast<float>(sum / static_cast<double>(f.rows));
  float* roots = part<float>(buffers, f.row_roots) + matrix * f.rows;
  for (int64_t r = 0; r < f.rows; ++r) roots[r] = std::sqrt(row[r] / mean);
}

/// New means of rows and columns, and what the step of an element needs of them.
void move_means(const Update& u, const Factored& f, const math::AdafactorStep& rule, float epsilon,
                const KernelBuffers& buffers) {
  const int64_t size = f.part_rows * f.columns;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, size));
  parallel_blocks(f.matrices * f.parts, grain, u.threads, [&](int64_t begin, int64_t end) {
    if (f.is_small()) return sum_small(u, f, rule, epsilon, buffers, begin, end);
    for (int64_t i = begin; i < end; ++i) sum_part(u, f, rule, epsilon, buffers, i);
  });
  parallel_blocks(f.matrices * f.columns, kElementGrain, u.threads,
                  [&](int64_t begin, int64_t end) { move_columns(f, rule, buffers, begin, end); });
  const int64_t few = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, f.rows));
  parallel_blocks(f.matrices, few, u.threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) find_row_roots(f, buffers, k);
  });
}

/// Calls `body(at, size, steps)` for the pieces of rows [begin, end), with the step of each element
/// before it is scaled.
template <class Body>
void for_row_pieces(const Update& u, const Factored& f, const KernelBuffers& buffers, int64_t begin,
                    int64_t end, Body&& body) {
  const float* roots = part<float>(buffers, f.row_roots);
  const float* columns = part<float>(buffers, f.column_roots);
  Room room, steps, factors;
  if (f.columns >= kWideRow) {
    for (int64_t row = begin; row < end; ++row) {
      const float* own = columns + row / f.rows * f.columns;
      for_pieces(0, f.columns, [&](int64_t column, int64_t size) {
        const int64_t at = row * f.columns + column;
        u.loops->over_factors(u.gradient(buffers, at, size, room), roots[row], own + column, size,
                              steps.data());
        body(at, size, steps.data());
      });
    }
    return;
  }
  const int64_t together = kPiece / std::max<int64_t>(1, f.columns);
  for (int64_t row = begin; row < end; row += together) {
    const int64_t rows = std::min(together, end - row), at = row * f.columns;
    const float* own = columns + row / f.rows * f.columns;
    int64_t left = f.rows - row % f.rows;  // of the matrix
    float* to = factors.data();
    for (int64_t r = row; r < row + rows; ++r) {
      for (int64_t c = 0; c < f.columns; ++c) *to++ = roots[r] * own[c];
      if (--left > 0) continue;
      own += f.columns;
      left = f.rows;
    }
    const int64_t size = rows * f.columns;
    u.loops->over_factors(u.gradient(buffers, at, size, room), 1, factors.data(), size,
                          steps.data());
    body(at, size, steps.data());
  }
}

/// How far and how much of a parameter goes.
struct AdafactorScale {
  float keep, rate;
};

AdafactorScale scale_of(const AdafactorPlan& plan, const math::AdafactorStep& rule,
                        const Squares& sum, int64_t count) {
  const auto size = static_cast<double>(std::max<int64_t>(count, 1));
  const double rate = rule.scale(std::sqrt(sum.param / size), std::sqrt(sum.step / size),
                                 plan.scaled, plan.epsilon_param, plan.clip);
  return {static_cast<float>(rule.keep), static_cast<float>(rate)};
}

void step_piece(const Update& u, const AdafactorScale& scale, const KernelBuffers& buffers,
                int64_t at, int64_t size, const float* steps) {
  u.loops->decayed_step(scale.keep, scale.rate, buffers.in<float>(0) + at, steps, size,
                        buffers.out<float>(0) + at);
  u.write_copy(buffers, at, size);
}

void factored_step(const Update& u, const AdafactorPlan& plan, const Factored& f,
                   const math::AdafactorStep& rule, const KernelBuffers& buffers) {
  move_means(u, f, rule, static_cast<float>(plan.epsilon), buffers);
  Squares* parts = part<Squares>(buffers, f.squares);
  parallel_blocks(f.all_rows(), f.grain(), u.threads, [&](int64_t begin, int64_t end) {
    Squares sum;
    for_row_pieces(u, f, buffers, begin, end, [&](int64_t at, int64_t size, const float* steps) {
      sum.param += sum_squares(buffers.in<float>(0) + at, size);
      sum.step += sum_squares(steps, size);
    });
    parts[begin / f.grain()] = sum;
  });
  const AdafactorScale scale = scale_of(plan, rule, add_up(parts, f.blocks()), u.count);
  parallel_blocks(f.all_rows(), f.grain(), u.threads, [&](int64_t begin, int64_t end) {
    for_row_pieces(u, f, buffers, begin, end, [&](int64_t at, int64_t size, const float* steps) {
      step_piece(u, scale, buffers, at, size, steps);
    });
  });
}

/// With a moment for each element.
void whole_step(const Update& u, const AdafactorPlan& plan, const math::AdafactorStep& rule,
                const KernelBuffers& buffers) {
  Squares* parts = part<Squares>(buffers, 0);
  float* moment = buffers.out<float>(1);
  parallel_blocks(u.count, kElementGrain, u.threads, [&](int64_t begin, int64_t end) {
    Room room, steps;
    Squares sum;
    for_pieces(begin, end, [&](int64_t at, int64_t size) {
      const float* grad = u.gradient(buffers, at, size, room);
      u.loops->move_moments(static_cast<float>(rule.beta), static_cast<float>(1 - rule.beta),
                            static_cast<float>(plan.epsilon), grad, buffers.in<float>(2) + at, size,
                            moment + at);
      u.loops->over_roots(grad, moment + at, size, steps.data());
      sum.param += sum_squares(buffers.in<float>(0) + at, size);
      sum.step += sum_squares(steps.data(), size);
    });
    parts[begin / kElementGrain] = sum;
  });
  const AdafactorScale scale = scale_of(plan, rule, add_up(parts, sum_blocks(u.count)), u.count);
  parallel_blocks(u.count, kElementGrain, u.threads, [&](int64_t begin, int64_t end) {
    Room room, steps;
    for_pieces(begin, end, [&](int64_t at, int64_t size) {
      u.loops->over_roots(u.gradient(buffers, at, size, room), moment + at, size, steps.data());
      step_piece(u, scale, buffers, at, size, steps.data());
    });
  });
}

Prepared prepare_adafactor(const KernelCall& call) {
  AdafactorPlan plan;
  Signature signature;
  if (std::string why = plan_adafactor(call, plan, signature); !why.empty())
    return Prepared::no(why);
  if (std::string why = refusal(call); !why.empty()) return Prepared::no(why);
  const Update u(call, signature);
  WorkspacePlan workspace;
  Factored f;
  if (plan.factored) {
    f = factored_of(plan, workspace);
  } else {
    workspace.add_elements<Squares>(sum_blocks(u.count));
  }
  const auto body = [u, plan, f](const KernelBuffers& buffers) {
    if (u.keeps(buffers)) return;
    const auto lr = static_cast<double>(*buffers.in<float>(4));
    const auto step = static_cast<double>(*buffers.in<int64_t>(5));
    const math::AdafactorStep rule =
        math::adafactor_step(lr, step, plan.decay_rate, plan.relative, plan.decay);
    if (plan.factored) return factored_step(u, plan, f, rule, buffers);
    whole_step(u, plan, rule, buffers);
  };
  return make_kernel(body, workspace.size(),
                     [kept = u.kept](size_t in, size_t out) { return kept.can_share(in, out); });
}

}  // namespace

std::vector<KernelRow> fast_scaled_rows() {
  return {
      {"ai.halfnote", "Adafactor", "fast.adafactor", prepare_adafactor},
      {"ai.halfnote", "Lamb", "fast.lamb", prepare_lamb},
  };
}

}  // namespace halfnote::cpu
