// The oracles: what must hold of every random training problem.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "tests/random/problem.h"

namespace halfnote::random {

/// One thing that does not hold.
struct Finding {
  std::string oracle;  // one of the names below
  std::string words;
};

/// What was and was not compared, by a short word (`compared bf16`, `overflow f16`, a refusal).
using Counts = std::map<std::string, int64_t>;

/// Holds a problem against the oracles; empty when all is well.
///
///   compile   every problem compiles in f32, bf16 and fp16, or is refused as unsupported
///   plan      f32, bf16, fp16: three steps of the planned program on the reference kernels, device
///             passes and fusion included, give the bits of the same step run node by node
///   passes    f32: loss and gradients in f64 with as few passes as will run are those with all of
///             them, but for constants that the compiler rounded
///   exact     f32: the loss without the passes that may be skipped has the same bits as with them
///   forward   f32: the model as it grew, before any pass, has that loss within the bound (not with
///             dropout, tied weights or an attached loss)
///   f32, bf16, f16   loss and gradients on the fastest kernels are those of f64 within the bound
///   cuda f32, …      the same on cuda-emulated, after the passes for GPUs
///
/// The bound: the step of that precision is run in f64 with random noise on every value, as large
/// as the rounding of its type (unit roundoff times 2: a kernel may be 2 ulp off, and sums round
/// more than once), several times. kSafety times the largest deviation of an element is allowed:
/// to first order both the error and the deviations are sums of the same terms, one a rounding,
/// and the largest of several draws falls short of such a sum by more than kSafety with a
/// probability that the second look (64 runs, 8 times the noise) makes negligible. That look also
/// crosses every kink (Relu, Max, ties) that rounding may have crossed.
/// With `only`, the name of an oracle, what that one does not need may be left out.
std::vector<Finding> judge(const Problem& problem, Counts& counts, std::string_view only = {});

inline constexpr double kSafety = 16;

/// Is this what is said of a loss that reaches no weight, as through Sign?
bool untrained(const Error& error);

/// Options for this problem in this precision, with its optimizer or with none.
CompileOptions options_of(const Problem& problem, DType precision, bool with_optimizer);

}  // namespace halfnote::random
