// Recurrent ops on the library against the CPU's reference: weights packed and taken apart, both
// directions, states, what is kept for the gradient; and what stays with our own kernels. All forms
// and types of these are in tests/kernels/recurrent_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>

#include "base/error.h"
#include "kernels/cuda/libraries/rnn.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/harness/asked.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

using libraries::RnnCell;
using libraries::RnnProblem;

struct RecurrentSizes {
  int64_t directions = 1, t = 3, b = 2, i = 5, h = 4;
  bool states = true, bias = true;
  DType dtype = DType::kF32;
};

int64_t gates_of(std::string_view op) { return op == "RNN" ? 1 : op == "GRU" ? 3 : 4; }

RnnProblem problem_of(std::string_view op, const RecurrentSizes& s) {
  RnnProblem p;
  p.cell = op == "RNN" ? RnnCell::kTanh : op == "GRU" ? RnnCell::kGru : RnnCell::kLstm;
  p.directions = s.directions;
  p.steps = s.t;
  p.batch = s.b;
  p.inputs = s.i;
  p.hidden = s.h;
  p.training = true;
  return p;
}

enum class Keeps { kNothing, kGates, kReserve };

/// ONNX's op, or ours, which keeps something.
Call forward_call(std::string_view op, const RecurrentSizes& s, Keeps keeps) {
  const int64_t g = gates_of(op), d = s.directions;
  const bool lstm = op == "LSTM";
  const Shape state = {d, s.b, s.h};
  const double near = 1 / std::sqrt(static_cast<double>(s.h));
  Call call{keeps == Keeps::kNothing ? "" : kOwn, op, {}, {}, {}};
  call.inputs = {random(s.dtype, {s.t, s.b, s.i}, -1, 1, 1),
                 random(s.dtype, {d, g * s.h, s.i}, -near, near, 2),
                 random(s.dtype, {d, g * s.h, s.h}, -near, near, 3),
                 s.bias ? random(DType::kF32, {d, 2 * g * s.h}, -near, near, 4) : Tensor(),
                 Tensor(),
                 s.states ? random(s.dtype, state, -1, 1, 5) : Tensor()};
  if (lstm) call.inputs.push_back(s.states ? random(s.dtype, state, -1, 1, 6) : Tensor());
  call.outputs = {{s.dtype, {s.t, d, s.b, s.h}}, {s.dtype, state}};
  if (lstm) call.outputs.push_back({s.dtype, state});
  if (d == 2) call.attributes.set("direction", std::string("bidirectional"));
  if (op == "GRU") call.attributes.set("linear_before_reset", int64_t{1});
  if (keeps == Keeps::kReserve) {
    const int64_t bytes = rnn_kept_bytes(problem_of(op, s));
    call.attributes.set("reserve", bytes);
    call.outputs.push_back({DType::kU8, {bytes}});
  } else if (keeps == Keeps::kGates) {
    call.outputs.push_back({DType::kF32, {d, s.t, s.b, g * s.h}});
    if (op != "RNN") call.outputs.push_back({DType::kF32, {d, s.t, s.b, s.h}});
  }
  return call;
}

/// The gradient, from what the forward call gave.
Call gradient_call(const Call& forward, const std::vector<Tensor>& results) {
  const std::string op(forward.op);
  const bool lstm = op == "LSTM";
  const size_t states = lstm ? 2 : 1, kept = 1 + states;
  static const std::set<std::string> kNames = {"RNNGrad", "GRUGrad", "LSTMGrad"};
  Call call{kOwn, *kNames.find(op + "Grad"), {}, forward.attributes, {}};
  const std::vector<Tensor>& in = forward.inputs;
  call.inputs = {in[0], in[1], in[2], Tensor(), in[5]};
  if (lstm) call.inputs.insert(call.inputs.end(), {in[6], Tensor()});
  call.inputs.insert(call.inputs.end(), {results[0], results[kept]});
  if (op != "RNN") call.inputs.push_back(results.size() > kept + 1 ? results[kept + 1] : Tensor());
  for (size_t k = 0; k <= states; ++k) {
    const auto seed = static_cast<uint32_t>(20 + k);
    call.inputs.push_back(random(results[k].dtype(), results[k].shape(), -1, 1, seed));
  }
  const Shape bias = {in[1].shape()[0], 2 * in[1].shape()[1]};
  const DType dtype = in[0].dtype();
  call.outputs = {
      {dtype, in[0].shape()}, {dtype, in[1].shape()}, {dtype, in[2].shape()}, {DType::kF32, bias}};
  for (size_t k = 0; k < states; ++k) {
    const bool given = in[5].defined();
    call.outputs.push_back(given ? Result{dtype, in[5].shape()} : Result{});
  }
  return call;
}

/// Forward and gradient on the device, which pass on what is kept, against the CPU's.
void check_pair(std::string_view op, const RecurrentSizes& s, std::string_view row) {
  SCOPED_TRACE(std::string(op) + " " + std::to_string(s.directions) + " directions, " +
               std::to_string(s.t) + "x" + std::to_string(s.b) + "x" + std::to_string(s.i) + "x" +
               std::to_string(s.h));
  const Call forward = forward_call(op, s, Keeps::kReserve);
  EXPECT_EQ(row_of(forward), row);
  const std::vector<Tensor> want = on_cpu(forward), got = on_device(forward);
  for (size_t k = 0; k + 1 < want.size(); ++k)
    test::expect_near(got[k], want[k], "result " + std::to_string(k));
  const Call back = gradient_call(forward, got);
  EXPECT_EQ(row_of(back), row);
  test::check_on_device(kernel_call(back), back.inputs, on_cpu(gradient_call(forward, want)));
}

/// The library has nothing for any problem, for as long as this lives.
struct NoLibrary {
  NoLibrary() { refuse_rnns("a test"); }
  NoLibrary(const NoLibrary&) = delete;
  NoLibrary& operator=(const NoLibrary&) = delete;
  ~NoLibrary() { refuse_rnns(nullptr); }
};

constexpr std::string_view kOps[] = {"RNN", "GRU", "LSTM"};
const RecurrentSizes kAllSizes[] = {{1, 3, 2, 5, 4},
                                    {2, 4, 3, 5, 7},
                                    {1, 1, 1, 1, 1},
                                    {2, 1, 5, 3, 2},
                                    {1, 7, 1, 9, 6},
                                    {2, 3, 2, 4, 5, false},
                                    {1, 3, 2, 5, 4, false, false},
                                    {2, 2, 3, 1, 3, true, false},
                                    {1, 2, 17, 33, 65}};

TEST(CudaRecurrent, InferenceOnTheLibrary) {
  for (const std::string_view op : kOps) {
    for (const RecurrentSizes& s : kAllSizes) {
      const Call call = forward_call(op, s, Keeps::kNothing);
      EXPECT_EQ(row_of(call), "dnn.recurrent");
      check(call);
    }
  }
  Call last = forward_call("LSTM", {2, 4, 3, 5, 7}, Keeps::kNothing);
  last.outputs[0] = {};  // the last states alone
  check(last);
  last.outputs[2] = {};
  check(last);
}

TEST(CudaRecurrent, TrainingOnTheLibrary) {
  for (const std::string_view op : kOps) {
    for (const RecurrentSizes& s : kAllSizes) check_pair(op, s, "dnn.recurrent");
  }
}

TEST(CudaRecurrent, ReserveOfOurOwnKernels) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "only the emulation can be told so";
  const NoLibrary none;
  for (const std::string_view op : kOps) {
    for (const RecurrentSizes& s : kAllSizes) check_pair(op, s, "own.recurrent");
  }
}

/// No sequences, and no inputs.
TEST(CudaRecurrent, OfNothing) {
  for (const std::string_view op : kOps) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (RecurrentSizes s : {RecurrentSizes{1, 3, 0, 5, 4}, {2, 2, 3, 0, 4}, {2, 3, 0, 0, 4}}) {
        s.dtype = dtype;
        const Call forward = forward_call(op, s, Keeps::kGates);
        check(forward);
        check(gradient_call(forward, on_cpu(forward)));
      }
    }
  }
}

TEST(CudaRecurrent, GradientsThatNobodyWants) {
  for (const std::string_view op : kOps) {
    const Call forward = forward_call(op, {2, 3, 2, 4, 5}, Keeps::kReserve);
    const std::vector<Tensor> got = on_device(forward), want = on_cpu(forward);
    const Call all = gradient_call(forward, got), reference = gradient_call(forward, want);
    const auto compare = [&](const auto& change) {
      Call call = all, on = reference;
      change(call);
      change(on);
      EXPECT_EQ(row_of(call), "dnn.recurrent");
      test::check_on_device(kernel_call(call), call.inputs, on_cpu(on));
    };
    for (size_t k = 0; k < all.outputs.size(); ++k) {
      compare([k](Call& call) { call.outputs[k] = {}; });
    }
    compare([](Call& call) {
      for (size_t k = 1; k < 4; ++k) call.outputs[k] = {};  // of no weight at all
    });
    const size_t dy = op == "LSTM" ? 10 : op == "GRU" ? 8 : 7;
    for (size_t k = dy; k < all.inputs.size(); ++k) {
      compare([k](Call& call) { call.inputs[k] = {}; });
    }
  }
}

/// In TF32 both nodes ask the library for the same.
TEST(CudaRecurrent, Tf32) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "only the emulation records";
  std::vector<RecordedRnn> calls;
  const Call forward = forward_call("LSTM", {1, 2, 3, 4, 5}, Keeps::kReserve);
  KernelCall call = kernel_call(forward);
  call.tf32 = true;
  record_rnns(&calls);
  const std::vector<Tensor> got = test::run_on_device(call, forward.inputs);
  const Call back = gradient_call(forward, got);
  KernelCall back_call = kernel_call(back);
  back_call.tf32 = true;
  test::run_on_device(back_call, back.inputs);
  record_rnns(nullptr);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].problem, calls[1].problem);
  EXPECT_TRUE(calls[0].problem.tf32 && calls[0].problem.training);
  EXPECT_FALSE(calls[0].gradient);
  EXPECT_TRUE(calls[1].gradient);
}

TEST(CudaRecurrent, OursStaysWhereTheLibraryDiffers) {
  const auto expect_own = [](const Call& call) {
    EXPECT_EQ(row_of(call), "own.recurrent");
    check(call);
  };
  for (const std::string_view op : kOps) {
    for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16}) {
      RecurrentSizes s;
      s.dtype = dtype;
      Call call = forward_call(op, s, Keeps::kNothing);
      if (dtype == DType::kF64) call.inputs[3] = call.inputs[3].cast_to(dtype);
      expect_own(call);
    }
    expect_own(forward_call(op, {}, Keeps::kGates));
    Call call = forward_call(op, {}, Keeps::kNothing);
    call.attributes.set("direction", std::string("reverse"));
    expect_own(call);
    call = forward_call(op, {}, Keeps::kNothing);
    call.attributes.set("clip", 0.25f);
    expect_own(call);
    call = forward_call(op, {}, Keeps::kNothing);
    call.inputs[4] = Tensor::of<int32_t>({2}, std::vector<int32_t>{3, 1});
    expect_own(call);
  }
  Call gru = forward_call("GRU", {}, Keeps::kNothing);
  gru.attributes.set("linear_before_reset", int64_t{0});
  expect_own(gru);
  Call relu = forward_call("RNN", {}, Keeps::kNothing);
  relu.attributes.set("activations", std::vector<std::string>{"Relu"});
  expect_own(relu);
  Call lstm = forward_call("LSTM", {}, Keeps::kNothing);
  lstm.attributes.set("input_forget", int64_t{1});
  expect_own(lstm);
  lstm = forward_call("LSTM", {}, Keeps::kNothing);
  lstm.inputs.push_back(random(DType::kF32, {1, 12}));
  expect_own(lstm);
}

TEST(CudaRecurrent, BatchBeforeTimeIsOurs) {
  RecurrentSizes s;
  Call call = forward_call("LSTM", s, Keeps::kNothing);
  call.attributes.set("layout", int64_t{1});
  call.inputs[0] = random(DType::kF32, {s.b, s.t, s.i});
  for (const size_t k : {5u, 6u}) call.inputs[k] = random(DType::kF32, {s.b, 1, s.h}, -1, 1, 7);
  call.outputs = {{DType::kF32, {s.b, s.t, 1, s.h}},
                  {DType::kF32, {s.b, 1, s.h}},
                  {DType::kF32, {s.b, 1, s.h}}};
  EXPECT_EQ(row_of(call), "own.recurrent");
  check(call);
}

/// A reserve with less room than the library wants, or of another size than the attribute says.
TEST(CudaRecurrent, ReservesThatDoNotFit) {
  const RecurrentSizes s;
  Call small = forward_call("LSTM", s, Keeps::kReserve);
  const int64_t gates = 5 * s.t * s.b * s.h * 4;
  small.attributes.set("reserve", gates);
  small.outputs[3] = {DType::kU8, {gates}};
  EXPECT_EQ(row_of(small), "own.recurrent") << "room for gates and cells alone";
  small.attributes.set("reserve", gates - 1);
  small.outputs[3] = {DType::kU8, {gates - 1}};
  EXPECT_THROW(row_of(small), Error);
  Call other = forward_call("LSTM", s, Keeps::kReserve);
  other.outputs[3].shape[0] += 1;
  EXPECT_THROW(row_of(other), Error);
  other = forward_call("LSTM", s, Keeps::kReserve);
  other.attributes.set("reserve", int64_t{-1});
  EXPECT_THROW(row_of(other), Error);
}

/// What the layers of a fixture's training step ask of the library while it is captured.
std::vector<RecordedRnn> layers_of(const std::string& model, DType precision) {
  test::CapturedStep step(test::source_folder() + "/tests/fixtures/models/" + model, precision);
  std::vector<RecordedRnn> calls;
  record_rnns(&calls);
  step.capture();
  record_rnns(nullptr);
  return calls;
}

TEST(RnnRules, ModelsAskForTheirLayers) {
  const std::pair<const char*, RnnCell> models[] = {{"lstm_lm", RnnCell::kLstm},
                                                    {"gru_classifier", RnnCell::kGru}};
  for (const auto& [model, cell] : models) {
    SCOPED_TRACE(model);
    const std::vector<RecordedRnn> calls = layers_of(model, DType::kF32);
    size_t gradients = 0;
    for (const RecordedRnn& call : calls) {
      EXPECT_TRUE(call.problem.cell == cell && call.problem.training);
      gradients += call.gradient ? 1 : 0;
    }
    EXPECT_GT(gradients, 0u);
    EXPECT_EQ(calls.size(), 2 * gradients);
    for (const DType precision : {DType::kBF16, DType::kF16})
      EXPECT_TRUE(layers_of(model, precision).empty()) << "cells in 16 bits";
    setenv("HALFNOTE_RECURRENT", "own", 1);
    EXPECT_TRUE(layers_of(model, DType::kF32).empty());
    unsetenv("HALFNOTE_RECURRENT");
  }
}

TEST(RnnRules, EveryElementOfTheBlockIsOfOneMatrixOrBias) {
  for (const std::string_view op : kOps) {
    for (const RecurrentSizes& s : kAllSizes) {
      const RnnProblem p = problem_of(op, s);
      std::vector<int> seen(static_cast<size_t>(p.weights()), 0);
      const auto mark = [&](int64_t first, int64_t count) {
        for (int64_t k = 0; k < count; ++k) ++seen.at(static_cast<size_t>(first + k));
      };
      for (int64_t d = 0; d < p.directions; ++d) {
        for (int64_t index = 0; index < 2 * p.gates(); ++index) {
          const libraries::RnnPart part = rnn_part(p, d, index);
          mark(part.matrix, p.hidden * (index < p.gates() ? p.inputs : p.hidden));
          mark(part.bias, p.hidden);
        }
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
    }
  }
}

TEST(RnnRules, Problems) {
  const auto why = [](auto&& spoil) {
    RnnProblem p = problem_of("LSTM", {});
    spoil(p);
    return illegal_rnn(p);
  };
  EXPECT_EQ(why([](RnnProblem&) {}), "");
  EXPECT_EQ(why([](RnnProblem& p) { p.directions = 3; }), "neither one nor two directions");
  EXPECT_EQ(why([](RnnProblem& p) { p.steps = 0; }), "a size of 0");
  EXPECT_EQ(why([](RnnProblem& p) { p.batch = int64_t{1} << 31; }),
            "a size that 32 bits do not hold");
  EXPECT_EQ(why([](RnnProblem& p) { p.batch = 1 << 20, p.steps = 1 << 10; }),
            "more elements than 32 bits count");
  EXPECT_EQ(why([](RnnProblem& p) { p.hidden = 1 << 15; }), "more weights than 32 bits count");
}

TEST(RnnRules, Addresses) {
  alignas(16) static float room[4];
  libraries::RnnOperands o;
  o.lengths = reinterpret_cast<const int32_t*>(room);
  o.x = o.weights = o.y = o.reserve = o.workspace = room;
  RnnProblem p = problem_of("GRU", {});
  EXPECT_EQ(illegal_operands(p, o, nullptr), "");
  libraries::RnnSlopes s;
  s.dy = room;
  EXPECT_EQ(illegal_operands(p, o, &s), "no address of dx");
  s.dx = room;
  EXPECT_EQ(illegal_operands(p, o, &s), "");
  s.dc = room;
  EXPECT_EQ(illegal_operands(p, o, &s), "a cell beside a cell that has none");
  s.dc = nullptr;
  o.h0 = reinterpret_cast<const std::byte*>(room) + 1;
  EXPECT_EQ(illegal_operands(p, o, &s), "an address that is not aligned of h0");
  o.h0 = nullptr;
  o.reserve = nullptr;
  EXPECT_EQ(illegal_operands(p, o, nullptr), "no address of reserve");
  p.training = false;
  EXPECT_EQ(illegal_operands(p, o, nullptr), "");
  EXPECT_EQ(illegal_operands(p, o, &s), "the gradient of a problem that keeps nothing");
}

}  // namespace
}  // namespace halfnote::cuda_emulated
