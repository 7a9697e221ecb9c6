// NonMaxSuppression: of boxes that overlap, those with the highest score.
#include <algorithm>
#include <array>

#include "kernels/cpu/dynamic/parts.h"

namespace halfnote::cpu {

namespace {

struct Box {
  float y1 = 0, x1 = 0, y2 = 0, x2 = 0;
};

/// Two opposite corners in any order, or centre, width and height.
Box read_box(const float* from, bool centered) {
  if (centered) {
    return {from[1] - from[3] / 2, from[0] - from[2] / 2, from[1] + from[3] / 2,
            from[0] + from[2] / 2};
  }
  return {std::min(from[0], from[2]), std::min(from[1], from[3]), std::max(from[0], from[2]),
          std::max(from[1], from[3])};
}

float overlap(const Box& a, const Box& b) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
  const float width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (height <= 0 || width <= 0) return 0;
  const float shared = height * width;
  const float all = (a.y2 - a.y1) * (a.x2 - a.x1) + (b.y2 - b.y1) * (b.x2 - b.x1) - shared;
  return all > 0 ? shared / all : 0;
}

struct Limits {
  int64_t most = 0;
  float overlap = 0, score = 0;
  bool has_score = false;
};

/// The boxes kept for one class, best first; of equal scores the first box wins.
std::vector<int64_t> keep(const std::vector<Box>& boxes, const float* scores,
                          const Limits& limits) {
  std::vector<int64_t> order, kept;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!limits.has_score || scores[i] > limits.score) order.push_back(static_cast<int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  for (const int64_t at : order) {
    if (static_cast<int64_t>(kept.size()) >= limits.most) break;
    const bool free = std::none_of(kept.begin(), kept.end(), [&](int64_t other) {
      return overlap(boxes[static_cast<size_t>(at)], boxes[static_cast<size_t>(other)]) >
             limits.overlap;
    });
    if (free) kept.push_back(at);
  }
  return kept;
}

float number(const DynamicCall& call, size_t index) {
  return call.has_input(index) && call.inputs[index].size() > 0
             ? static_cast<float>(call.inputs[index].at_as_double(0))
             : 0.0f;
}

/// boxes (batches, n, 4), scores (batches, classes, n) -> (kept, 3): batch, class, box.
std::vector<Tensor> run_nms(const DynamicCall& call) {
  const Tensor &boxes = required(call, 0), &scores = required(call, 1);
  const Shape &b = boxes.shape(), &s = scores.shape();
  if (boxes.dtype() != DType::kF32 || scores.dtype() != DType::kF32 || b.size() != 3 ||
      s.size() != 3 || b[2] != 4 || b[0] != s[0] || b[1] != s[2]) {
    throw data_error(call, "boxes and scores do not fit");
  }
  Limits limits;
  if (call.has_input(2) && call.inputs[2].size() > 0) limits.most = call.inputs[2].at_as_int(0);
  limits.overlap = number(call, 3);
  limits.score = number(call, 4);
  limits.has_score = call.has_input(4) && call.inputs[4].size() > 0;
  const bool centered = call.attributes.get_int("center_point_box", 0) != 0;
  std::vector<int64_t> found;
  for (int64_t batch = 0; batch < b[0]; ++batch) {
    std::vector<Box> here;
    for (int64_t i = 0; i < b[1]; ++i)
      here.push_back(read_box(boxes.data<float>().data() + (batch * b[1] + i) * 4, centered));
    for (int64_t k = 0; k < s[1]; ++k) {
      const float* of_class = scores.data<float>().data() + (batch * s[1] + k) * s[2];
      for (const int64_t at : keep(here, of_class, limits))
        found.insert(found.end(), {batch, k, at});
    }
  }
  const auto rows = static_cast<int64_t>(found.size()) / 3;
  return {Tensor::of<int64_t>({rows, 3}, found)};
}

}  // namespace

std::vector<DynamicRow> boxes_dynamic_rows() {
  return {{"", "NonMaxSuppression", nullptr, run_nms}};
}

}  // namespace halfnote::cpu
