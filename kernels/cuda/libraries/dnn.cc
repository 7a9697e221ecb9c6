// The emulated library: every request is held against cuDNN's rules, and answered by plain loops.
#include "kernels/cuda/libraries/dnn.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/libraries/dnn_request.h"

namespace halfnote::cuda_emulated {

namespace {

using cpu::ConvPlan;
using libraries::ConvLayout;
using libraries::Convolution;
using libraries::ConvOperands;
using libraries::ConvProblem;
using libraries::ConvResult;
using libraries::DnnRequest;

using Place = std::array<int64_t, 3>;

Place place_of(int64_t at, const ConvPlan::Dims& dims) {
  return {at / dims[2] / dims[1], at / dims[2] % dims[1], at % dims[2]};
}

/// The pixel of x that output o meets at kernel element k; -1 in the padding.
int64_t pixel(const ConvPlan& p, const Place& o, const Place& k) {
  int64_t at = 0;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t i = o[d] * p.stride[d] + p.offset(d, k[d]);
    if (i < 0 || i >= p.in[d]) return -1;
    at = at * p.in[d] + i;
  }
  return at;
}

/// Where the elements of a tensor lie: (outer, channels, positions) in one of the two layouts.
struct Walk {
  int64_t outer, channel, position;

  Walk(int64_t channels, int64_t positions, ConvLayout layout)
      : outer(channels * positions),
        channel(layout == ConvLayout::kPlain ? positions : 1),
        position(layout == ConvLayout::kPlain ? 1 : channels) {}
  int64_t at(int64_t o, int64_t c, int64_t p) const {
    return o * outer + c * channel + p * position;
  }
};

struct Walks {
  Walk x, w, y;

  Walks(const ConvPlan& p, ConvLayout layout)
      : x(p.channels, p.in_size(), layout),
        w(p.group_channels(), p.kernel_size(), layout),
        y(p.filters, p.out_size(), layout) {}
};

/// Calls `body(x, w, y)` with the places, of a group's first channel, of all pairs that meet.
template <class Body>
void for_pairs(const ConvPlan& p, const Walks& walks, const Body& body) {
  const int64_t channels = p.group_channels(), filters = p.group_filters();
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t o = 0; o < p.out_size(); ++o) {
      for (int64_t k = 0; k < p.kernel_size(); ++k) {
        const int64_t at = pixel(p, place_of(o, p.out), place_of(k, p.kernel));
        if (at < 0) continue;
        for (int64_t m = 0; m < p.filters; ++m) {
          body(walks.x.at(n, m / filters * channels, at), walks.w.at(m, 0, k), walks.y.at(n, m, o));
        }
      }
    }
  }
}

struct Numbers {
  std::vector<double> values;

  Numbers(void* from, DType dtype, int64_t count, bool is_result)
      : values(static_cast<size_t>(count)) {
    if (!is_result)
      cpu::load_reals(static_cast<const std::byte*>(from), dtype, 0, count, values.data());
  }
};

/// Each sum begins with the bias of its channel.
void start_with_bias(const void* bias, DType dtype, int64_t channels, const Walk& walk,
                     std::vector<double>& sums) {
  const auto count = static_cast<int64_t>(sums.size());
  std::vector<double> added(static_cast<size_t>(channels));
  cpu::load_reals(static_cast<const std::byte*>(bias), dtype, 0, channels, added.data());
  for (int64_t i = 0; i < count; ++i)
    sums[static_cast<size_t>(i)] = added[static_cast<size_t>(i / walk.channel % channels)];
}

void convolve(const ConvProblem& problem, const ConvOperands& operands) {
  const ConvPlan& p = problem.plan;
  const ConvResult wanted = problem.wanted;
  const auto numbers = [&](ConvResult which, void* from, int64_t count) {
    return Numbers(from, problem.operands, count, which == wanted);
  };
  Numbers x = numbers(ConvResult::kX, operands.x, p.x_size());
  Numbers w = numbers(ConvResult::kW, operands.w, p.w_size());
  Numbers y = numbers(ConvResult::kY, operands.y, p.y_size());
  const int64_t channels = p.group_channels();
  const Walks walks(p, problem.layout);
  if (problem.has_bias() && wanted == ConvResult::kY)
    start_with_bias(operands.bias, problem.bias, p.filters, walks.y, y.values);
  if (problem.has_bias() && wanted == ConvResult::kX)
    start_with_bias(operands.bias, problem.bias, p.channels, walks.x, x.values);
  const int64_t dx = walks.x.channel, dw = walks.w.channel;
  for_pairs(p, walks, [&](int64_t at_x, int64_t at_w, int64_t at_y) {
    double* of_x = x.values.data() + at_x;
    double* of_w = w.values.data() + at_w;
    double& of_y = y.values[static_cast<size_t>(at_y)];
    if (wanted == ConvResult::kY) {
      for (int64_t c = 0; c < channels; ++c) of_y += of_x[c * dx] * of_w[c * dw];
    } else if (wanted == ConvResult::kX) {
      for (int64_t c = 0; c < channels; ++c) of_x[c * dx] += of_y * of_w[c * dw];
    } else {
      for (int64_t c = 0; c < channels; ++c) of_w[c * dw] += of_y * of_x[c * dx];
    }
  });
  const Numbers& result = wanted == ConvResult::kY ? y : wanted == ConvResult::kX ? x : w;
  void* to = wanted == ConvResult::kY   ? operands.y
             : wanted == ConvResult::kX ? operands.x
                                        : operands.w;
  cpu::store_reals(result.values.data(), static_cast<int64_t>(result.values.size()), problem.result,
                   static_cast<std::byte*>(to), 0);
}

/// For tests.
struct Watch {
  std::vector<DnnRequest>* requests = nullptr;
  std::string (*why)(const DnnRequest&) = nullptr;
  std::vector<std::string>* engines = nullptr;
};
Watch& watch() {
  static Watch all;
  return all;
}

class EmulatedConvolution final : public Convolution {
 public:
  explicit EmulatedConvolution(ConvProblem problem, std::string_view engine = {})
      : problem_(std::move(problem)), engine_(engine) {}

  size_t workspace_bytes() const override { return kRoom; }
  void run(Stream& stream, const ConvOperands& operands) const override {
    const DnnRequest request = libraries::dnn_request(problem_);
    if (std::string why = libraries::illegal_operands(request, operands, kRoom); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal convolution: " + why);
    if (watch().requests != nullptr) watch().requests->push_back(request);
    if (watch().engines != nullptr) watch().engines->push_back(engine_);
    auto& queue = static_cast<EmulatedStream&>(stream);
    ++queue.device().count().launches;
    queue.enqueue([problem = problem_, operands] {
      convolve(problem, operands);
      std::memset(operands.workspace, 0xff, kRoom);  // nothing in it survives a call
    });
  }

 private:
  static constexpr size_t kRoom = 1024;
  ConvProblem problem_;
  std::string engine_;  // empty: the library's choice
};

class EmulatedDnn final : public libraries::Dnn {
 public:
  std::shared_ptr<const Convolution> plan(const ConvProblem& problem,
                                          std::string& refusal) override {
    const DnnRequest request = libraries::dnn_request(problem);
    refusal = libraries::illegal_request(request);
    if (refusal.empty() && watch().why != nullptr) refusal = watch().why(request);
    return refusal.empty() ? std::make_shared<EmulatedConvolution>(problem) : nullptr;
  }
  /// It pretends to have two, with the same results.
  std::vector<std::string> engines(const ConvProblem& problem) override {
    std::string refusal;
    if (plan(problem, refusal) == nullptr) return {};
    return {"eng1_k2=0", "eng1_k2=1"};
  }
  std::shared_ptr<const Convolution> plan_by(const ConvProblem& problem,
                                             std::string_view engine) override {
    const std::vector<std::string> names = engines(problem);
    if (std::find(names.begin(), names.end(), engine) == names.end())
      libraries::refuse_algorithm("the emulated library", engine, "it has none of that name");
    return std::make_shared<EmulatedConvolution>(problem, engine);
  }
  std::shared_ptr<const libraries::Sdpa> plan(const libraries::SdpaProblem& problem,
                                              std::string& refusal) override {
    return plan_emulated(problem, refusal);
  }
  std::shared_ptr<const libraries::Rnn> plan(const libraries::RnnProblem& problem,
                                             std::string& refusal) override {
    return plan_emulated(problem, refusal);
  }
};

}  // namespace

void record_convolutions(std::vector<DnnRequest>* requests) { watch().requests = requests; }
void record_engines(std::vector<std::string>* engines) { watch().engines = engines; }
void refuse_convolutions(std::string (*why)(const DnnRequest& request)) { watch().why = why; }

libraries::Dnn& dnn() {
  static EmulatedDnn library;
  return library;
}

}  // namespace halfnote::cuda_emulated
