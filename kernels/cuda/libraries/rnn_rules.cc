#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cuda/libraries/rnn.h"

namespace halfnote::libraries {

namespace {

struct RnnPlace {
  const void* at;
  bool wanted;
  const char* name;
};

/// May an address be null only where it is not wanted; is it aligned?
std::string illegal_place(const RnnPlace& place) {
  if (place.at == nullptr)
    return place.wanted ? std::string("no address of ") + place.name : std::string();
  if (reinterpret_cast<uintptr_t>(place.at) % kRnnAlignment == 0) return {};
  return std::string("an address that is not aligned of ") + place.name;
}

}  // namespace

RnnPart rnn_part(const RnnProblem& p, int64_t direction, int64_t index) {
  const int64_t of_inputs = std::min(index, p.gates()), of_states = index - of_inputs;
  return {direction * p.matrices() + (of_inputs * p.inputs + of_states * p.hidden) * p.hidden,
          p.directions * p.matrices() + direction * p.biases() + index * p.hidden};
}

std::string illegal_rnn(const RnnProblem& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (p.directions != 1 && p.directions != 2) return "neither one nor two directions";
  for (const int64_t size : {p.steps, p.batch, p.inputs, p.hidden}) {
    if (size <= 0) return "a size of 0";
    if (size > kMost) return "a size that 32 bits do not hold";
  }
  const int64_t widest = std::max(p.inputs, 2 * p.gates() * p.hidden);
  if (widest > kMost || p.steps > kMost / p.batch || p.rows() > kMost / widest)
    return "more elements than 32 bits count";
  if (p.hidden > kMost / widest || p.inputs > kMost / widest)
    return "more weights than 32 bits count";
  return {};
}

std::string illegal_operands(const RnnProblem& p, const RnnOperands& o, const RnnSlopes* slopes) {
  const bool lstm = p.cell == RnnCell::kLstm;
  const RnnSlopes s = slopes == nullptr ? RnnSlopes{} : *slopes;
  if (slopes != nullptr && !p.training) return "the gradient of a problem that keeps nothing";
  if (!lstm && (o.c0 != nullptr || o.c != nullptr || s.dc != nullptr || s.dc0 != nullptr))
    return "a cell beside a cell that has none";
  const std::array places = {RnnPlace{o.lengths, true, "lengths"},
                             RnnPlace{o.x, true, "x"},
                             RnnPlace{o.weights, true, "weights"},
                             RnnPlace{o.h0, false, "h0"},
                             RnnPlace{o.c0, false, "c0"},
                             RnnPlace{o.y, true, "y"},
                             RnnPlace{o.h, false, "h"},
                             RnnPlace{o.c, false, "c"},
                             RnnPlace{o.reserve, p.training, "reserve"},
                             RnnPlace{o.workspace, true, "workspace"},
                             RnnPlace{s.dy, slopes != nullptr, "dy"},
                             RnnPlace{s.dh, false, "dh"},
                             RnnPlace{s.dc, false, "dc"},
                             RnnPlace{s.dx, slopes != nullptr, "dx"},
                             RnnPlace{s.dh0, false, "dh0"},
                             RnnPlace{s.dc0, false, "dc0"},
                             RnnPlace{s.dweights, false, "dweights"}};
  for (const RnnPlace& place : places) {
    if (std::string why = illegal_place(place); !why.empty()) return why;
  }
  return {};
}

std::string unfit_for_rnn(const Recurrence& r) {
  if (r.reverse.front()) return "a layer that runs backwards";
  if (r.batch_first) return "batch before time";
  if (r.clip) return "a clip";
  if (r.coupled) return "coupled gates";
  if (r.op == RecurrentOp::kGru && !r.linear_before_reset) return "a GRU that resets first";
  for (int64_t d = 0; d < r.directions(); ++d) {
    for (int64_t f = 0; f < r.functions(); ++f) {
      const bool gate = r.op != RecurrentOp::kRnn && f == 0;
      const ActivationKind usual = gate ? ActivationKind::kSigmoid : ActivationKind::kTanh;
      if (r.activation(d, f).kind != usual) return "other activations than Sigmoid and Tanh";
    }
  }
  return {};
}

RnnProblem rnn_of(const Recurrence& r) {
  RnnProblem problem;
  problem.cell = r.op == RecurrentOp::kLstm  ? RnnCell::kLstm
                 : r.op == RecurrentOp::kGru ? RnnCell::kGru
                                             : RnnCell::kTanh;
  problem.directions = r.directions();
  return problem;
}

int64_t rnn_weight_room(const RnnProblem& p) {
  constexpr auto kBlock = static_cast<int64_t>(kRnnBlock);
  const int64_t bytes = p.weights() * static_cast<int64_t>(sizeof(float));
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

int64_t rnn_kept_bytes(const RnnProblem& p) {
  return static_cast<int64_t>(kRnnBlock) + rnn_weight_room(p) + rnn_reserve_room(p);
}

int64_t rnn_reserve_room(const RnnProblem& p) {
  constexpr int64_t kBytes = sizeof(float), kSlack = 1024;
  const int64_t numbers = p.cell == RnnCell::kTanh ? 1 : p.cell == RnnCell::kGru ? 6 : 5;
  return numbers * p.rows() * p.outputs() * kBytes + kSlack;
}

}  // namespace halfnote::libraries
