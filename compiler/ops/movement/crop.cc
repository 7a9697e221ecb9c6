// CenterCropPad as a Slice of the middle and a Pad around it.
#include "base/error.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

/// What happens to one axis: `begin` elements are cut off (negative: put) before it, `end` after
/// it.
struct Change {
  int64_t axis = 0, begin = 0, end = 0;
};

std::vector<Change> changes_of(LowerContext& rule) {
  const Expr x = rule.inputs[0];
  const auto sizes = constant_ints(rule.b.graph(), rule.inputs.at(1).id);
  const auto axes = rule.attributes().get_ints("axes", axes_between(0, x.rank()));
  if (!sizes) {
    throw Error(ErrorCode::kUnsupported, "the shape of CenterCropPad is computed by the model")
        .expected("a constant", "a value that depends on an input")
        .hint("fix the symbolic dims with --dim NAME=N, so that it folds");
  }
  if (sizes->size() != axes.size()) {
    throw Error(ErrorCode::kModel, "CenterCropPad needs one size for each axis")
        .expected(std::to_string(axes.size()), std::to_string(sizes->size()));
  }
  std::vector<Change> changes;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = normalize_axis(axes[i], x.rank());
    const Dim dim = x.shape()[static_cast<size_t>(axis)];
    if (!dim.known()) require_static(x.shape(), static_cast<size_t>(axis), "CenterCropPad");
    const int64_t surplus = dim.value - (*sizes)[i];
    const int64_t half = surplus >= 0 ? surplus / 2 : -(-surplus / 2);
    if (surplus != 0) changes.push_back({axis, half, surplus - half});
  }
  return changes;
}

}  // namespace

std::vector<Expr> lower_center_crop_pad(LowerContext& rule) {
  Builder& b = rule.b;
  std::vector<int64_t> starts, ends, cut, before, after, padded;
  for (const Change& change : changes_of(rule)) {
    const Dim dim = rule.inputs[0].shape()[static_cast<size_t>(change.axis)];
    if (change.end > 0) {
      starts.push_back(change.begin);
      ends.push_back(dim.value - change.end);
      cut.push_back(change.axis);
    } else {
      before.push_back(-change.begin);
      after.push_back(-change.end);
      padded.push_back(change.axis);
    }
  }
  Expr y = rule.inputs[0];
  if (!cut.empty()) y = b.op("Slice", {y, b.ints(starts), b.ints(ends), b.ints(cut)});
  if (padded.empty()) return {y};
  before.insert(before.end(), after.begin(), after.end());
  return {b.op("Pad", {y, b.ints(before), b.none(), b.ints(padded)})};
}

}  // namespace halfnote::movement
