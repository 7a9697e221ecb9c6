// Recurrent layers of a library, behind one narrow class: cuDNN's RNN API on a GPU, plain loops
// under the emulation. Both take only what the library's rules allow (rnn_rules.cc), and both read
// the weights where cuDNN has them: in one block, packed by our own kernels
// (kernels/cuda/contraction/recurrent/library.cu).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ops/recurrence.h"
#include "kernels/device.h"

namespace halfnote::libraries {

/// cuDNN's cells, with its order of gates:
///   tanh  h' = tanh(W·x + Wb + R·h + Rb)
///   GRU   r, z, n: n = tanh(W·x + Wb + r∘(R·h + Rb)), h' = (1 − z)∘n + z∘h
///   LSTM  i, f, g, o: c' = f∘c + i∘g, h' = o∘tanh(c')
enum class RnnCell : uint8_t { kTanh, kGru, kLstm };

/// One layer in f32, all rows as long as the others; the second direction runs backwards.
struct RnnProblem {
  RnnCell cell = RnnCell::kTanh;
  int64_t directions = 1;
  int64_t steps = 0, batch = 0, inputs = 0, hidden = 0;
  bool training = false;  // is a reserve kept for the gradient?
  bool tf32 = false;      // may products round their operands to TF32?

  int64_t gates() const { return cell == RnnCell::kTanh ? 1 : cell == RnnCell::kGru ? 3 : 4; }
  int64_t outputs() const { return directions * hidden; }  // a row of Y
  int64_t rows() const { return steps * batch; }
  /// Elements of the block of weights. For each direction the matrices W of the gates, (H, I), then
  /// R, (H, H); behind those of all directions, in the same order, a bias (H) of each matrix.
  int64_t matrices() const { return gates() * hidden * (inputs + hidden); }  // of a direction
  int64_t biases() const { return 2 * gates() * hidden; }                    // likewise
  int64_t weights() const { return directions * (matrices() + biases()); }
  friend bool operator==(const RnnProblem&, const RnnProblem&) = default;
};

/// Where matrix `index` of a direction and its bias begin in the block: W of the gates from 0 on, R
/// from gates() on.
struct RnnPart {
  int64_t matrix = 0, bias = 0;
};
RnnPart rnn_part(const RnnProblem& problem, int64_t direction, int64_t index);

/// In device memory, f32 but for the lengths.
struct RnnOperands {
  const int32_t* lengths = nullptr;  // (B): T for each row
  const void* x = nullptr;           // (T, B, I)
  const void* weights = nullptr;
  const void *h0 = nullptr, *c0 = nullptr;  // (D, B, H); null: zeros
  void* y = nullptr;                        // (T, B, D·H); read by the gradient
  void *h = nullptr, *c = nullptr;          // the last states; null: not asked for
  void* reserve = nullptr;                  // written in training; the gradient reads and spoils it
  void* workspace = nullptr;
};

struct RnnSlopes {
  const void* dy = nullptr;
  const void *dh = nullptr, *dc = nullptr;  // null: zeros
  void* dx = nullptr;
  void *dh0 = nullptr, *dc0 = nullptr;  // null: not asked for
  void* dweights = nullptr;             // null: not asked for; added to
};

/// A recurrent layer that the library has planned.
class Rnn {
 public:
  virtual ~Rnn() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual size_t reserve_bytes() const = 0;  // 0 without training
  virtual void forward(Stream& stream, const RnnOperands& operands) const = 0;
  virtual void gradient(Stream& stream, const RnnOperands& operands,
                        const RnnSlopes& slopes) const = 0;
};

inline constexpr size_t kRnnAlignment = sizeof(float);  // cuDNN says of none

/// The rule of cuDNN's documentation that the problem breaks; empty if it keeps all: one or two
/// directions, and sizes that 32 bits hold, none of them 0.
std::string illegal_rnn(const RnnProblem& problem);
/// The same of the addresses: all there that are asked for, and aligned.
std::string illegal_operands(const RnnProblem& problem, const RnnOperands& operands,
                             const RnnSlopes* slopes);

/// Why the library does not compute what ONNX's attributes say; empty if it does: no layer that
/// only runs backwards, no batch before time, ONNX's default activations (a Relu of the library may
/// write 0 for NaN), no clip, no coupled gates, a GRU with linear_before_reset only.
std::string unfit_for_rnn(const Recurrence& recurrence);
/// … and the problem, without its sizes.
RnnProblem rnn_of(const Recurrence& recurrence);

/// Where a block of the library begins: its reserve may be copied from one such place to another.
inline constexpr size_t kRnnBlock = 256;
/// What a forward pass keeps for its gradient in one tensor: from the first multiple of kRnnBlock
/// on the weights as they are packed, and behind them, from such a multiple on, the library's
/// reserve. There is room for what cuDNN 9.19 asks for (5, 6 or 1 numbers an element of Y, and less
/// than 512 bytes), and for the gates of our own kernels.
int64_t rnn_weight_room(const RnnProblem& problem);
int64_t rnn_reserve_room(const RnnProblem& problem);
int64_t rnn_kept_bytes(const RnnProblem& problem);

}  // namespace halfnote::libraries

namespace halfnote::cuda {

/// For tests, in a build with CUDA: what cuDNN says of a problem where there is no GPU.
struct PaperRnn {
  int64_t weight_bytes = 0;
  std::vector<libraries::RnnPart> parts;  // in bytes; all of direction 0, then of 1
  int64_t reserve_bytes = 0;
};
PaperRnn describe_on_paper(const libraries::RnnProblem& problem);

}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {

std::shared_ptr<const libraries::Rnn> plan_emulated(const libraries::RnnProblem& problem,
                                                    std::string& refusal);

/// A call as it was made.
struct RecordedRnn {
  libraries::RnnProblem problem;
  bool gradient = false;
};
/// For tests: from now on every call is put there when it runs or is captured; null: nowhere.
void record_rnns(std::vector<RecordedRnn>* calls);
/// For tests: the library refuses every problem, with this reason; null: none.
void refuse_rnns(const char* why);

}  // namespace halfnote::cuda_emulated
