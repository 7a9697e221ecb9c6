#include "runtime/train/labels/named_sample.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

#include "runtime/train/data/shuffle.h"

namespace halfnote {
namespace {

struct FoundElement {
  size_t field = 0;
  int64_t at = 0;
};

/// The first element of this value in the one integer field that has some.
std::optional<FoundElement> find_element(const Batch& batch, size_t fields, int64_t value) {
  std::optional<FoundElement> found;
  for (size_t i = 0; i < fields; ++i) {
    const Tensor& tensor = batch.inputs[i];
    if (!is_integer(tensor.dtype())) continue;
    for (int64_t k = 0; k < tensor.size(); ++k) {
      if (tensor.at_as_int(k) != value) continue;
      if (found) return std::nullopt;
      found = {i, k};
      break;
    }
  }
  return found;
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void name_sample(const Error& error, const InputMap& data, const Batch& batch,
                 std::optional<uint64_t> shuffled_by) {
  if (error.code() != ErrorCode::kData) return;
  const std::optional<int64_t> label = whole_number(error.value());
  if (!label) return;
  const std::optional<FoundElement> found = find_element(batch, data.size(), *label);
  if (!found) return;
  std::string where = fmt::format("element {}", found->at);
  if (!data.is_whole(found->field)) {
    int64_t sample = batch.start.sample + data.row_of(found->field, found->at, batch.rows);
    if (shuffled_by) sample = Shuffle(data.data().size(), *shuffled_by, batch.start.epoch)[sample];
    where = fmt::format("sample {}", sample);
  }
  const std::string& op = error.place().op;
  const bool is_label = op.find("Loss") != std::string::npos;
  const std::string what = is_label ? fmt::format("label {} is no class", *label)
                                    : fmt::format("{} is out of range for the {} that reads it",
                                                  *label, op.empty() ? "node" : op);
  throw Error(ErrorCode::kData,
              fmt::format("{} of \"{}\": {}", where, data.field(found->field).name, what))
      .at({data.data().origin(), {}, {}})
      .expected(error.expectation(), error.value())
      .hint(is_label ? error.hint_text()
                     : "do data and model belong together (the size of a vocabulary)?");
}

}  // namespace halfnote
