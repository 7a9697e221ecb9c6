#include <algorithm>

#include "kernels/cuda/libraries/sdpa.h"

namespace halfnote::libraries {

namespace {

constexpr int64_t kHeadStep = kSdpaHeadStep;
constexpr uintptr_t kSdpaAlignment = 16;
constexpr int64_t kDropoutTile = 64;

std::string illegal_layout(const SdpaTensor& t, const char* name) {
  const std::string of = std::string(" of ") + name;
  if (*std::min_element(t.dims.begin(), t.dims.end()) <= 0) return "no elements" + of;
  if (t.strides[3] != 1) return "rows that are not packed" + of;
  if (t.dims[3] % kHeadStep != 0) return "a head size that is no multiple of 8" + of;
  if (t.dims[3] > kSdpaMostHead) return "a head size above 256" + of;
  for (size_t d = 0; d < 3; ++d) {
    if (t.dims[d] > 1 && (t.strides[d] <= 0 || t.strides[d] % kHeadStep != 0))
      return "rows that do not begin at 16 bytes" + of;
  }
  return {};
}

bool belong_together(const SdpaProblem& p) {
  for (const SdpaTensor* t : {&p.k, &p.v, &p.y}) {
    if (t->dims[0] != p.q.dims[0] || p.q.dims[1] % t->dims[1] != 0) return false;
  }
  return p.y.dims[1] == p.q.dims[1] && p.k.dims[1] == p.v.dims[1] && p.y.dims[2] == p.q.dims[2] &&
         p.k.dims[2] == p.v.dims[2] && p.k.dims[3] == p.q.dims[3] && p.y.dims[3] == p.v.dims[3];
}

struct Place {
  const void* at;
  bool wanted;
  const char* name;
};

}  // namespace

std::string illegal_attention(const SdpaProblem& p) {
  if (!is_16bit_float(p.dtype)) return "operands that are not 16-bit floats";
  const std::array<std::pair<const SdpaTensor*, const char*>, 4> tensors = {
      {{&p.q, "q"}, {&p.k, "k"}, {&p.v, "v"}, {&p.y, "y"}}};
  for (const auto& [tensor, name] : tensors) {
    if (std::string why = illegal_layout(*tensor, name); !why.empty()) return why;
  }
  if (!belong_together(p)) return "extents that do not fit";
  const std::array<int64_t, 4> scores = {p.q.dims[0], p.q.dims[1], p.q.dims[2], p.k.dims[2]};
  for (size_t d = 0; p.has_bias() && d < 4; ++d) {
    if (p.bias[d] != 1 && p.bias[d] != scores[d]) return "a term of another shape than the scores";
  }
  // cuDNN 9.19 takes these two and gives wrong gradients.
  if (p.gradient && p.has_bias() && (p.bias[2] != scores[2] || p.bias[3] != scores[3]))
    return "the gradient beside a term that is one for all queries or keys";
  if (p.gradient && p.drops() && (scores[2] % kDropoutTile != 0 || scores[3] % kDropoutTile != 0))
    return "the gradient of a dropout, of queries or keys that are no multiple of 64";
  if (p.bias_gradient && !(p.gradient && p.has_bias())) return "the gradient of no term";
  constexpr int64_t kMostScores = int64_t{1} << 31;
  if ((p.gradient || p.drops()) && scores[0] * scores[1] >= kMostScores / scores[2] / scores[3])
    return "too many scores";
  if (p.gradient && scores[2] == 1 && scores[3] == 1) return "the gradient of a single score";
  return {};
}

std::string illegal_operands(const SdpaProblem& p, const SdpaOperands& o, size_t workspace_bytes) {
  const Place places[] = {{o.q, true, "q"},
                          {o.k, true, "k"},
                          {o.v, true, "v"},
                          {o.y, true, "y"},
                          {o.dy, p.gradient, "dy"},
                          {o.dq, p.gradient, "dq"},
                          {o.dk, p.gradient, "dk"},
                          {o.dv, p.gradient, "dv"},
                          {o.statistics, p.gradient || p.statistics, "statistics"},
                          {o.bias, p.has_bias(), "bias"},
                          {o.dbias, p.bias_gradient, "dbias"},
                          {o.kept, p.drops(), "kept"},
                          {o.workspace, workspace_bytes > 0, "workspace"}};
  for (const Place& place : places) {
    if (!place.wanted) continue;
    if (place.at == nullptr) return std::string("no address of ") + place.name;
    if (reinterpret_cast<uintptr_t>(place.at) % kSdpaAlignment != 0)
      return std::string("an address that is not aligned of ") + place.name;
  }
  return {};
}

}  // namespace halfnote::libraries
