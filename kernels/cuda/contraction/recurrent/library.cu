// RNN, GRU and LSTM by the library, in f32: a call for all steps forward, two for the gradient.
//
// The library wants W, R and B in one block, its own order of gates; a kernel packs them, another
// takes their gradients apart. What a forward pass keeps for its gradient is the library's own, so
// gates and cells cannot be had from it: it takes calls that ask for none (inference), and those
// that ask for a reserve in their place (pass keep-reserve). In 16 bits cuDNN keeps gates and cells
// in 16 bits, which is less than the operators promise: there our own kernels stay.
#include "kernels/cuda/contraction/recurrent/library.h"

#include "kernels/cpu/reals.h"
#include "kernels/cuda/libraries/dnn.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using namespace cpu::recurrent;  // NOLINT(google-build-using-namespace): names of operands
using libraries::kRnnBlock;
using libraries::Rnn;
using libraries::RnnOperands;
using libraries::RnnProblem;
using libraries::RnnSlopes;

/// Where an element of the block comes from: W, R or B of ONNX.
struct WeightPlace {
  int from;
  int64_t at;
};

/// The block of libraries/rnn.h, gate by gate.
struct WeightBlock {
  Divisor matrices, biases;             // elements of a direction
  Divisor of_inputs, of_state, hidden;  // elements of a matrix W, of R, and of a bias
  int64_t in_matrices, gates;
  int order[4];  // ONNX's gate in the place of the library's

  explicit WeightBlock(const RnnProblem& p)
      : matrices(p.matrices()),
        biases(p.biases()),
        of_inputs(p.hidden * p.inputs),
        of_state(p.hidden * p.hidden),
        hidden(p.hidden),
        in_matrices(p.directions * p.matrices()),
        gates(p.gates()),
        order{0, 1, 2, 3} {
    if (p.cell == libraries::RnnCell::kGru) {  // r z n from z r n
      order[0] = 1;
      order[1] = 0;
    } else if (p.cell == libraries::RnnCell::kLstm) {  // i f g o from i o f g
      order[1] = 2;
      order[2] = 3;
      order[3] = 1;
    }
  }

  __device__ WeightPlace place(int64_t i) const {
    if (i >= in_matrices) {
      i -= in_matrices;
      const int64_t d = biases.quotient(i);
      const int64_t bias = hidden.quotient(i - d * biases.value());  // of both halves of B
      const int64_t j = i - d * biases.value() - bias * hidden.value();
      const int64_t half = bias >= gates ? 1 : 0;
      return {2, ((2 * d + half) * gates + order[bias - half * gates]) * hidden.value() + j};
    }
    const int64_t d = matrices.quotient(i);
    const int64_t at = i - d * matrices.value(), w = gates * of_inputs.value();
    const bool recurrent = at >= w;
    const Divisor& of = recurrent ? of_state : of_inputs;
    const int64_t in_side = recurrent ? at - w : at, gate = of.quotient(in_side);
    const int64_t rest = in_side - gate * of.value();
    return {recurrent ? 1 : 0, (d * gates + order[gate]) * of.value() + rest};
  }
};

struct PackWeights {
  WeightBlock block;
  const float *w, *r;
  RealPointer b;  // may be absent: zeros
  float* to;
  __device__ void operator()(int64_t i) const {
    const WeightPlace place = block.place(i);
    if (place.from == 2) {
      to[i] = b.data == nullptr ? 0.0f : b.load<float>(place.at);
    } else {
      to[i] = (place.from == 0 ? w : r)[place.at];
    }
  }
};

struct UnpackWeights {
  WeightBlock block;
  const float* from;
  RealOutput to[3];  // dW, dR, dB
  __device__ void operator()(int64_t i) const {
    const WeightPlace place = block.place(i);
    const RealOutput& out = to[place.from];
    if (out.data != nullptr) out.write(place.at, static_cast<double>(from[i]));
  }
};

/// (T, A, C, H) as (T, C, A, H): Y has directions before rows, the library rows before directions.
struct SwapRows {
  const float* from;
  float* to;
  Divisor hidden, a, c;
  __device__ void operator()(int64_t i) const {
    const int64_t vector = hidden.quotient(i), j = i - vector * hidden.value();
    const int64_t of_a = a.quotient(vector), at_a = vector - of_a * a.value();
    const int64_t t = c.quotient(of_a), at_c = of_a - t * c.value();
    to[i] = from[((t * a.value() + at_a) * c.value() + at_c) * hidden.value() + j];
  }
};

struct FillLengths {
  int32_t* to;
  int32_t steps;
  __device__ void operator()(int64_t row) const { to[row] = steps; }
};

std::byte* block_at(std::byte* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return address + ((at + kRnnBlock - 1) / kRnnBlock * kRnnBlock - at);
}
const std::byte* block_at(const std::byte* address) {
  return block_at(const_cast<std::byte*>(address));
}

/// A call of the library: the problem, and the places of the workspace.
struct LibraryRecurrent {
  RnnProblem problem;
  std::shared_ptr<const Rnn> rnn;
  cpu::RecurrentGradSlots slots;
  std::vector<DType> output_types;
  DType b_type = DType::kUndefined;
  size_t lengths = 0, weights = 0, y = 0, dy = 0, dx = 0, reserve = 0, dweights = 0, room = 0;

  bool lstm() const { return problem.cell == libraries::RnnCell::kLstm; }
  bool turns() const { return problem.directions > 1; }
  int64_t y_elements() const { return problem.rows() * problem.outputs(); }
  size_t weight_bytes() const { return static_cast<size_t>(problem.weights()) * sizeof(float); }

  void fill_lengths(const KernelBuffers& buffers, RnnOperands& o) const {
    auto* to = cpu::part<int32_t>(buffers, lengths);
    for_each(stream_of(buffers), problem.batch,
             FillLengths{to, static_cast<int32_t>(problem.steps)});
    o.lengths = to;
    o.workspace = block_at(buffers.workspace + room);
  }
  void swap(const KernelBuffers& buffers, const float* from, float* to, int64_t a,
            int64_t c) const {
    for_each(stream_of(buffers), y_elements(),
             SwapRows{from, to, Divisor(problem.hidden), Divisor(a), Divisor(c)});
  }
  /// Y or dY as the library has it.
  const void* rows_first(const KernelBuffers& buffers, const float* from, size_t to) const {
    if (!turns()) return from;
    auto* turned = cpu::part<float>(buffers, to);
    swap(buffers, from, turned, problem.directions, problem.batch);
    return turned;
  }

  void forward(const KernelBuffers& buffers) const {
    RnnOperands o;
    fill_lengths(buffers, o);
    const size_t kept = lstm() ? 3 : 2;
    std::byte* packed = buffers.workspace + weights;
    if (problem.training) {
      packed = block_at(buffers.out<std::byte>(kept));
      o.reserve = packed + libraries::rnn_weight_room(problem);
    }
    for_each(stream_of(buffers), problem.weights(),
             PackWeights{WeightBlock(problem),
                         buffers.in<float>(kW),
                         buffers.in<float>(kR),
                         {buffers.in<std::byte>(kB), b_type},
                         reinterpret_cast<float*>(packed)});
    o.weights = packed;
    o.x = buffers.in<float>(kX);
    o.h0 = buffers.in<float>(kInitialH);
    auto* const result = buffers.out<float>(0);
    auto* const written = turns() || result == nullptr ? cpu::part<float>(buffers, y) : result;
    o.y = written;
    o.h = buffers.out<float>(1);
    if (lstm()) {
      o.c0 = buffers.in<float>(kInitialC);
      o.c = buffers.out<float>(2);
    }
    rnn->forward(stream_of(buffers), o);
    if (turns() && result != nullptr)
      swap(buffers, written, result, problem.batch, problem.directions);
  }

  void gradient(const KernelBuffers& buffers) const {
    Stream& stream = stream_of(buffers);
    RnnOperands o;
    RnnSlopes s;
    fill_lengths(buffers, o);
    const std::byte* kept = block_at(buffers.in<std::byte>(slots.gates));
    o.weights = kept;
    // The library writes into its reserve, which is an operand of ours.
    o.reserve = block_at(buffers.workspace + reserve);
    stream.copy(o.reserve, kept + libraries::rnn_weight_room(problem), rnn->reserve_bytes());
    o.x = buffers.in<float>(0);
    o.y = const_cast<void*>(rows_first(buffers, buffers.in<float>(slots.y), y));
    o.h0 = buffers.in<float>(slots.initial_h);
    s.dh = buffers.in<float>(slots.dy_h);
    s.dh0 = buffers.out<float>(slots.d_initial_h);
    if (lstm()) {
      o.c0 = buffers.in<float>(slots.initial_c);
      s.dc = buffers.in<float>(slots.dy_c);
      s.dc0 = buffers.out<float>(slots.d_initial_c);
    }
    if (const auto* slope = buffers.in<float>(slots.dy)) {
      s.dy = rows_first(buffers, slope, dy);
    } else {
      auto* zeros = cpu::part<float>(buffers, dy);
      stream.fill(zeros, 0, static_cast<size_t>(y_elements()) * sizeof(float));
      s.dy = zeros;
    }
    auto* const result = buffers.out<float>(0);
    s.dx = result == nullptr ? cpu::part<float>(buffers, dx) : result;
    UnpackWeights unpack{WeightBlock(problem), cpu::part<float>(buffers, dweights), {}};
    for (size_t i = 0; i < 3; ++i) {
      unpack.to[i] = {buffers.out<std::byte>(i + 1), output_types[i + 1]};
      if (unpack.to[i].data != nullptr) s.dweights = cpu::part<float>(buffers, dweights);
    }
    if (s.dweights != nullptr) stream.fill(s.dweights, 0, weight_bytes());
    rnn->gradient(stream, o, s);
    if (s.dweights != nullptr) for_each(stream, problem.weights(), unpack);
  }
};

/// Types and operands that the library has: all of f32, all rows as long as the others.
std::string unfit_operands(const KernelCall& call, const cpu::RecurrentGradSlots& slots,
                           bool gradient) {
  if (call.inputs[0].dtype != DType::kF32) return "operands that are not f32";
  const size_t lengths = gradient ? slots.lengths : size_t{kLengths};
  if (call.has_input(lengths)) return "lengths of rows, which only the device knows";
  const bool lstm = slots.p != cpu::RecurrentGradSlots::kNone;
  if (!lstm) return {};
  if (call.has_input(gradient ? slots.p : size_t{kP})) return "peepholes";
  const size_t cell = gradient ? slots.initial_c : size_t{kInitialC};
  if (call.has_input(cell) && call.inputs[cell].dtype != DType::kF32)
    return "a cell that is not f32";
  return {};
}

/// Plans a call whose shapes and types are checked; says why where the library has nothing for it.
std::string plan_on_library(const KernelCall& call, const cpu::RecurrentPlan& plan, bool gradient,
                            LibraryRecurrent& made) {
  made.slots = cpu::grad_slots(plan.r.op);
  if (std::string why = unfit_operands(call, made.slots, gradient); !why.empty()) return why;
  if (std::string why = libraries::unfit_for_rnn(plan.r); !why.empty()) return why;
  RnnProblem& p = made.problem = libraries::rnn_of(plan.r);
  p.steps = plan.steps;
  p.batch = plan.batch;
  p.inputs = plan.inputs;
  p.hidden = plan.hidden;
  p.tf32 = call.tf32;
  const size_t gates = made.lstm() ? 3 : 2;
  p.training = gradient || (plan.r.reserve > 0 && call.has_output(gates));
  if (plan.r.reserve == 0) {
    if (gradient) return "gates that the library did not keep";
    if (call.has_output(gates) || call.has_output(gates + 1)) return "gates that are asked for";
  }
  std::string why;
  made.rnn = dnn().plan(p, why);
  if (made.rnn == nullptr) return why;
  if (p.training &&
      (plan.r.reserve < libraries::rnn_kept_bytes(p) ||
       static_cast<int64_t>(made.rnn->reserve_bytes()) > libraries::rnn_reserve_room(p)))
    return "a reserve of more than there is room for";
  return {};
}

void lay_out(LibraryRecurrent& made, bool gradient, cpu::WorkspacePlan& workspace) {
  const RnnProblem& p = made.problem;
  made.lengths = workspace.add_elements<int32_t>(p.batch);
  made.y = workspace.add_elements<float>(made.y_elements());
  if (gradient) {
    made.dy = workspace.add_elements<float>(made.y_elements());
    made.dx = workspace.add_elements<float>(p.rows() * p.inputs);
    made.reserve = workspace.add(made.rnn->reserve_bytes() + kRnnBlock);
    made.dweights = workspace.add(made.weight_bytes());
  } else if (!p.training) {
    made.weights = workspace.add(made.weight_bytes());
  }
  made.room = workspace.add(made.rnn->workspace_bytes() + kRnnBlock);
}

/// The gradients of what is T are T; the operators' inference gives nothing else.
void require_f32(const KernelCall& call, const cpu::RecurrentGradSlots& slots) {
  const auto require = [&](const std::vector<Operand>& operands, size_t index) {
    if (index >= operands.size() || !operands[index].present()) return;
    if (operands[index].dtype != DType::kF32)
      throw cpu::model_error(call, "a gradient of a recurrent op is not of the type of X")
          .expected("f32", std::string(short_name(operands[index].dtype)));
  };
  for (const size_t index : {slots.dy, slots.dy_h, slots.dy_c}) require(call.inputs, index);
  for (const size_t index : {size_t{0}, slots.d_initial_h, slots.d_initial_c})
    require(call.outputs, index);
}

Prepared prepare_on_library(const KernelCall& call, bool gradient) {
  const cpu::RecurrentPlan plan =
      gradient ? cpu::plan_recurrent_grad(call) : cpu::plan_recurrent(call);
  if (std::string why = cpu::recurrent_type_refusal(call, plan, gradient); !why.empty())
    return Prepared::no(why);
  LibraryRecurrent made;
  if (std::string why = plan_on_library(call, plan, gradient, made); !why.empty())
    return Prepared::no(why);
  if (gradient) require_f32(call, made.slots);
  if (!gradient && call.has_input(kB)) made.b_type = call.inputs[kB].dtype;
  made.output_types.resize(4, DType::kUndefined);
  for (size_t i = 0; i < call.outputs.size() && i < 4; ++i)
    made.output_types[i] = call.outputs[i].dtype;
  cpu::WorkspacePlan workspace;
  lay_out(made, gradient, workspace);
  const size_t bytes = workspace.size();
  if (gradient) return make_kernel([made](const KernelBuffers& b) { made.gradient(b); }, bytes);
  return make_kernel([made](const KernelBuffers& b) { made.forward(b); }, bytes);
}

}  // namespace

bool library_takes(const KernelCall& call, const cpu::RecurrentPlan& plan, bool gradient) {
  LibraryRecurrent made;
  return plan_on_library(call, plan, gradient, made).empty();
}

Prepared prepare_library_recurrent(const KernelCall& call) {
  return prepare_on_library(call, false);
}
Prepared prepare_library_recurrent_gradient(const KernelCall& call) {
  return prepare_on_library(call, true);
}

}  // namespace halfnote::HN_CUDA
