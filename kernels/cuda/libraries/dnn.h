// Convolutions, attention and recurrent layers of a library, behind one narrow class: cuDNN on a
// GPU, plain loops under the emulation, which also holds every request against the library's rules.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cuda/libraries/rnn.h"
#include "kernels/cuda/libraries/sdpa.h"
#include "kernels/device.h"

namespace halfnote::libraries {

/// Which of x, w and y is computed from the other two.
enum class ConvResult : uint8_t { kY, kX, kW };

/// How x, w and y lie: (N, spatial…, C), (M, kernel…, C/groups) and (N, spatial…, M), as tensor
/// cores want it; or as the operators have them, channels before the spatial dims.
enum class ConvLayout : uint8_t { kChannelsLast, kPlain };

/// A convolution or one of its gradients. Sums are in f32, each is rounded once.
struct ConvProblem {
  cpu::ConvPlan plan;
  ConvResult wanted = ConvResult::kY;
  ConvLayout layout = ConvLayout::kChannelsLast;
  DType operands = DType::kUndefined;
  DType result = DType::kUndefined;
  /// Operands in f32 that tensor cores may read in TF32: they hold 16-bit floats, which are what
  /// they are there too, or are to be rounded.
  bool tf32 = false;
  /// Of a bias for each channel of the result, which is added to the sums before they are rounded;
  /// undefined: none.
  DType bias = DType::kUndefined;

  bool has_bias() const { return bias != DType::kUndefined; }
  DType type_of(ConvResult tensor) const { return tensor == wanted ? result : operands; }
};

/// Where x, w, y and the bias are, and the library's scratch memory. Two of the first three are
/// read, the third is written.
struct ConvOperands {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  void* workspace = nullptr;
  const void* bias = nullptr;
};

/// A convolution that the library has planned.
class Convolution {
 public:
  virtual ~Convolution() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual void run(Stream& stream, const ConvOperands& operands) const = 0;
};

/// So many ways of the library to compute a convolution are tried.
inline constexpr size_t kMostEngines = 8;

class Dnn {
 public:
  virtual ~Dnn() = default;
  /// Null, with a reason, where the library has nothing for the problem that is deterministic and
  /// as exact as asked for.
  virtual std::shared_ptr<const Convolution> plan(const ConvProblem& problem,
                                                  std::string& refusal) = 0;
  /// The names of up to kMostEngines engines with their settings (`eng38_k2=5_k13=1`) that plan()
  /// may take: those that have a plan, best first as the library believes.
  virtual std::vector<std::string> engines(const ConvProblem& problem) = 0;
  /// The plan of the engine of that name. Throws Error(kUsage) if the library does not suggest it
  /// for the problem.
  virtual std::shared_ptr<const Convolution> plan_by(const ConvProblem& problem,
                                                     std::string_view engine) = 0;
  virtual std::shared_ptr<const Sdpa> plan(const SdpaProblem& problem, std::string& refusal) = 0;
  virtual std::shared_ptr<const Rnn> plan(const RnnProblem& problem, std::string& refusal) = 0;
};

}  // namespace halfnote::libraries

namespace halfnote::cuda {
/// cuDNN. Throws Error(kDevice) if it is not installed.
libraries::Dnn& dnn();
}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {
libraries::Dnn& dnn();
}  // namespace halfnote::cuda_emulated
