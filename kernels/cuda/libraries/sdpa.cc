// The emulated library: every problem is held against cuDNN's rules, and answered by plain loops in
// f32, with probabilities and their gradients rounded before a product as the library does.
#include "kernels/cuda/libraries/sdpa.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/device/emulated_device.h"

namespace halfnote::cuda_emulated {

namespace {

using libraries::Sdpa;
using libraries::SdpaOperands;
using libraries::SdpaProblem;
using libraries::SdpaTensor;

std::vector<SdpaProblem>*& attention_watch() {
  static std::vector<SdpaProblem>* problems = nullptr;
  return problems;
}

float rounded(float value, DType dtype) {
  std::byte bits[2];
  cpu::store_reals(&value, 1, dtype, bits, 0);
  cpu::load_reals(bits, dtype, 0, 1, &value);
  return value;
}

/// The rows of one head.
struct Head {
  int64_t rows = 0, size = 0;
  std::vector<float> values;

  Head(const SdpaTensor& t) : rows(t.dims[2]), size(t.dims[3]) {
    values.resize(static_cast<size_t>(rows * size));
  }
  Head(const SdpaTensor& t, DType dtype, const void* from, int64_t b, int64_t h) : Head(t) {
    for (int64_t i = 0; i < rows; ++i) {
      cpu::load_reals(static_cast<const std::byte*>(from), dtype, begin(t, b, h, i), size, row(i));
    }
  }
  static int64_t begin(const SdpaTensor& t, int64_t b, int64_t h, int64_t i) {
    return b * t.strides[0] + h * t.strides[1] + i * t.strides[2];
  }
  float* row(int64_t i) { return values.data() + i * size; }
  const float* row(int64_t i) const { return values.data() + i * size; }
  void write(const SdpaTensor& t, DType dtype, void* to, int64_t b, int64_t h) const {
    for (int64_t i = 0; i < rows; ++i) {
      cpu::store_reals(row(i), size, dtype, static_cast<std::byte*>(to), begin(t, b, h, i));
    }
  }
};

float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add(float* to, const float* from, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// One head of a problem: its scores, and what a dropout leaves of a probability.
struct Scores {
  const SdpaProblem& p;
  const SdpaOperands& o;
  int64_t b, h;

  int64_t rows() const { return p.q.dims[2]; }
  int64_t keys() const { return p.k.dims[2]; }
  float score(const Head& q, const Head& k, int64_t i, int64_t j) const {
    if (p.causal && j > i) return -std::numeric_limits<float>::infinity();
    const float product = dot(q.row(i), k.row(j), q.size) * p.scale;
    return p.has_bias() ? product + o.bias[bias_at(i, j)] : product;
  }
  float kept(int64_t i, int64_t j) const {
    if (!p.drops()) return 1;
    float mask = 0;
    const int64_t at = ((b * p.q.dims[1] + h) * rows() + i) * keys() + j;
    cpu::load_reals(static_cast<const std::byte*>(o.kept), p.dtype, at, 1, &mask);
    return mask;
  }
  int64_t statistic_at(int64_t i) const { return (b * p.q.dims[1] + h) * rows() + i; }

 private:
  int64_t bias_at(int64_t i, int64_t j) const {
    const int64_t place[] = {b, h, i, j};
    int64_t at = 0;
    for (size_t d = 0; d < 4; ++d) at = at * p.bias[d] + (p.bias[d] == 1 ? 0 : place[d]);
    return at;
  }
};

/// Query heads that read one head of K and V.
int64_t group_of(const SdpaProblem& p) { return p.q.dims[1] / p.k.dims[1]; }

void attend(const SdpaProblem& p, const SdpaOperands& o, int64_t b, int64_t h) {
  const int64_t read = h / group_of(p);
  const Head q(p.q, p.dtype, o.q, b, h), k(p.k, p.dtype, o.k, b, read),
      v(p.v, p.dtype, o.v, b, read);
  const Scores of{p, o, b, h};
  Head y(p.y);
  std::vector<float> s(static_cast<size_t>(k.rows));
  const float factor = p.drops() ? p.kept : 1;
  for (int64_t i = 0; i < q.rows; ++i) {
    float most = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t j = 0; j < k.rows; ++j) {
      const float score = s[static_cast<size_t>(j)] = of.score(q, k, i, j);
      most = score > most || score != score ? score : most;
    }
    for (float& score : s) sum += score = std::exp(score - most);  // a row of −∞ is NaN
    for (int64_t j = 0; j < k.rows; ++j) {
      const float weight = s[static_cast<size_t>(j)] * of.kept(i, j) * factor;
      add(y.row(i), v.row(j), rounded(weight, p.dtype) / sum, v.size);
    }
    if (p.statistics) o.statistics[of.statistic_at(i)] = most + std::log(sum);
  }
  y.write(p.y, p.dtype, o.y, b, h);
}

/// The gradients of query head `h`; those of the keys and values that it reads are added.
void differentiate(const SdpaProblem& p, const SdpaOperands& o, int64_t b, int64_t h, Head& dk,
                   Head& dv) {
  const int64_t read = h / group_of(p);
  const Head q(p.q, p.dtype, o.q, b, h), k(p.k, p.dtype, o.k, b, read),
      v(p.v, p.dtype, o.v, b, read), y(p.y, p.dtype, o.y, b, h), dy(p.y, p.dtype, o.dy, b, h);
  Head dq(p.q);
  const Scores of{p, o, b, h};
  const float factor = p.drops() ? p.kept : 1;
  for (int64_t i = 0; i < q.rows; ++i) {
    const float mean = dot(y.row(i), dy.row(i), y.size) / factor;
    for (int64_t j = 0; j < k.rows; ++j) {
      const float weight = std::exp(of.score(q, k, i, j) - o.statistics[of.statistic_at(i)]);
      const float kept = of.kept(i, j);
      add(dv.row(j), dy.row(i), rounded(weight * kept * factor, p.dtype), v.size);
      const float slope = weight * (dot(dy.row(i), v.row(j), v.size) * kept - mean) * factor;
      if (p.bias_gradient) {
        const int64_t at = of.statistic_at(i) * k.rows + j;
        cpu::store_reals(&slope, 1, p.dtype, static_cast<std::byte*>(o.dbias), at);
      }
      const float of_product = rounded(slope * p.scale, p.dtype);
      add(dq.row(i), k.row(j), of_product, q.size);
      add(dk.row(j), q.row(i), of_product, k.size);
    }
  }
  dq.write(p.q, p.dtype, o.dq, b, h);
}

/// The gradients of all query heads that read head `read` of K and V.
void differentiate_group(const SdpaProblem& p, const SdpaOperands& o, int64_t b, int64_t read) {
  Head dk(p.k), dv(p.v);
  const int64_t group = group_of(p);
  for (int64_t h = read * group; h < (read + 1) * group; ++h) differentiate(p, o, b, h, dk, dv);
  dk.write(p.k, p.dtype, o.dk, b, read);
  dv.write(p.v, p.dtype, o.dv, b, read);
}

class EmulatedSdpa final : public Sdpa {
 public:
  explicit EmulatedSdpa(SdpaProblem problem) : problem_(problem) {}

  size_t workspace_bytes() const override { return kRoom; }
  void run(Stream& stream, const SdpaOperands& operands) const override {
    if (std::string why = libraries::illegal_operands(problem_, operands, kRoom); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal attention: " + why);
    if (attention_watch() != nullptr) attention_watch()->push_back(problem_);
    auto& queue = static_cast<EmulatedStream&>(stream);
    ++queue.device().count().launches;
    queue.enqueue([p = problem_, operands] {
      for (int64_t b = 0; b < p.q.dims[0]; ++b) {
        for (int64_t h = 0; h < (p.gradient ? p.k : p.q).dims[1]; ++h) {
          (p.gradient ? differentiate_group : attend)(p, operands, b, h);
        }
      }
      std::memset(operands.workspace, 0xff, kRoom);  // nothing in it survives a call
    });
  }

 private:
  static constexpr size_t kRoom = 1024;
  SdpaProblem problem_;
};

}  // namespace

void record_attentions(std::vector<SdpaProblem>* problems) { attention_watch() = problems; }

std::shared_ptr<const Sdpa> plan_emulated(const SdpaProblem& problem, std::string& refusal) {
  refusal = libraries::illegal_attention(problem);
  return refusal.empty() ? std::make_shared<EmulatedSdpa>(problem) : nullptr;
}

}  // namespace halfnote::cuda_emulated
