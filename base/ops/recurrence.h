// The attributes of ONNX's RNN, GRU and LSTM with every default filled in: read here once, for the
// compiler's rules and for the kernels.
//
// Per step, with f, g, h the activations, x the input, s the hidden state, c the cell (ONNX's
// equations; each gate is a row block of W and R, in this order):
//   RNN   s' = f(a)                                                          gates: a
//   GRU   z = f(az), r = f(ar), n = g(an), s' = (1 − z)∘n + z∘s              gates: z r n
//         an's hidden part is (r∘s)·Rnᵀ, or r∘(s·Rnᵀ + bias) with linear_before_reset
//   LSTM  i = f(ai), o = f(ao), f = f(af), n = g(an), c' = f∘c + i∘n, s' = o∘h(c')
//                                                                            gates: i o f n
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/attribute.h"

namespace halfnote {

enum class RecurrentOp : uint8_t { kRnn, kGru, kLstm };

/// The activation functions that ONNX names, on x with the numbers alpha and beta.
enum class ActivationKind : uint8_t {
  kAffine,           // alpha·x + beta
  kElu,              // x < 0: alpha·(exp x − 1)
  kHardSigmoid,      // alpha·x + beta, cut to [0, 1]
  kLeakyRelu,        // x < 0: alpha·x
  kRelu,             //
  kScaledTanh,       // alpha·tanh(beta·x)
  kSigmoid,          //
  kSoftplus,         // log(1 + exp x)
  kSoftsign,         // x / (1 + |x|)
  kTanh,             //
  kThresholdedRelu,  // x where x ≥ alpha, else 0
};

struct Activation {
  ActivationKind kind = ActivationKind::kTanh;
  float alpha = 0, beta = 0;
  friend bool operator==(const Activation&, const Activation&) = default;
};
std::string_view activation_name(ActivationKind kind);
/// Does the function take a number from activation_alpha, or activation_beta?
bool takes_alpha(ActivationKind kind);
bool takes_beta(ActivationKind kind);

struct Recurrence {
  RecurrentOp op = RecurrentOp::kRnn;
  std::vector<bool> reverse = {false};  // one entry a direction
  std::vector<Activation> activations;  // functions() a direction
  std::optional<float> clip;            // bound of what goes into an activation function of a gate
  bool batch_first = false;             // layout 1: (batch, time, …)
  bool coupled = false;                 // LSTM's input_forget: f = 1 − i
  bool linear_before_reset = false;     // GRU
  /// Bytes of what the forward op keeps for its gradient in a form of the kernel's own, in place of
  /// gates, cells and hidden; 0: it keeps these.
  int64_t reserve = 0;

  int64_t directions() const { return static_cast<int64_t>(reverse.size()); }
  /// Row blocks of W and R: 1, 3 or 4.
  int64_t gates() const { return op == RecurrentOp::kRnn ? 1 : op == RecurrentOp::kGru ? 3 : 4; }
  /// Activation functions a direction: 1, 2 or 3.
  int64_t functions() const {
    return op == RecurrentOp::kRnn ? 1 : op == RecurrentOp::kGru ? 2 : 3;
  }
  const Activation& activation(int64_t direction, int64_t function) const {
    return activations[static_cast<size_t>(direction * functions() + function)];
  }
};

/// `op_type` is RNN, GRU or LSTM, with or without `Grad`; nothing for any other name.
std::optional<RecurrentOp> recurrent_op(std::string_view op_type);

/// Throws Error(kModel) for attributes that ONNX does not allow. Activation names are taken in any
/// case. `hidden` is the last dim of R, -1 if unknown, which attribute hidden_size must repeat.
Recurrence recurrence_of(RecurrentOp op, const Attributes& attributes, int64_t hidden);

}  // namespace halfnote
