#include "runtime/train/labels/named_sample.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

#include "runtime/train/data/shuffle.h"
#include "runtime/train/labels/index_readers.h"
#include "runtime/train/labels/index_source.h"

namespace halfnote {
namespace {

struct BadElement {
  FedElement from;
  int64_t read = 0;  // what the node reads: the element, or what the graph made of it
};

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The first element that is out of the reader's range; of an unknown range, that is `value`.
std::optional<BadElement> find_element(const IndexReader& reader, const IndexSource& source,
                                       std::span<const Tensor> fed, int64_t value) {
  const ReadElements read = source.read(fed);
  for (int64_t i = 0; i < read.numbers.size(); ++i) {
    const int64_t number = read.numbers.at_as_int(i);
    if (reader.size ? reader.takes(number) : number != value) continue;
    const auto from = read.from(i);
    return from ? std::optional(BadElement{*from, number}) : std::nullopt;
  }
  return std::nullopt;
}

/// What can be said of the data.
struct Finding {
  std::optional<BadElement> element;
  std::string computed_by;  // else, if known: the node
  std::string op;           // that the model has where the error is
};

/// Names are no keys: nodes of the same one must have found the same element.
Finding find_bad_element(const Error& error, const Graph& graph, std::span<const Tensor> fed,
                         int64_t value) {
  Finding finding;
  for (const IndexReader& reader : find_index_readers(graph)) {
    if (graph.label(reader.node) != error.place().node) continue;
    const IndexSource source(graph, reader.indices);
    if (!source.found()) return {std::nullopt, source.stopped_at(), graph.node(reader.node).op};
    const auto found = find_element(reader, source, fed, value);
    if (!found || (finding.element && !(finding.element->from == found->from))) return {};
    finding.element = found;
  }
  return finding;
}

/// `sample 5 of "labels"`.
std::string place_of(const FedElement& element, size_t field, const InputMap& data,
                     const Batch& batch, std::optional<uint64_t> shuffled_by) {
  const std::string& name = data.field(field).name;
  if (data.is_whole(field)) return fmt::format("element {} of \"{}\"", element.at, name);
  int64_t sample = batch.start.sample + data.row_of(field, element.at, batch.rows);
  if (shuffled_by) sample = Shuffle(data.data().size(), *shuffled_by, batch.start.epoch)[sample];
  return fmt::format("sample {} of \"{}\"", sample, name);
}

}  // namespace

void name_sample(const Error& error, const FedGraph& fed, const InputMap& data, const Batch& batch,
                 std::optional<uint64_t> shuffled_by) {
  if (error.code() != ErrorCode::kData) return;
  const std::optional<int64_t> value = whole_number(error.value());
  if (!value) return;
  std::vector<Tensor> tensors;
  for (const size_t input : fed.inputs) tensors.push_back(batch.inputs[input]);
  Finding finding;
  try {
    finding = find_bad_element(error, fed.graph, tensors, *value);
  } catch (const Error&) {  // nothing can be said of the data then
    return;
  }
  if (!finding.computed_by.empty()) {
    const std::string why =
        fmt::format("the model computes it in node {}: which sample it comes from cannot be told",
                    finding.computed_by);
    throw Error(error)
        .at({error.place().file, error.place().node, finding.op})
        .hint(error.hint_text().empty() ? why : error.hint_text() + "; " + why);
  }
  if (!finding.element) return;
  const FedElement& from = finding.element->from;
  const size_t field = fed.inputs[from.input];
  const std::string where = place_of(from, field, data, batch, shuffled_by);
  const Tensor& input = batch.inputs[field];
  const std::string stored = is_float(input.dtype())
                                 ? fmt::format("{}", input.at_as_double(from.at))
                                 : std::to_string(input.at_as_int(from.at));
  std::string read = std::to_string(finding.element->read);
  const std::string& op = error.place().op;
  const bool is_label = op.find("Loss") != std::string::npos;
  const std::string made =
      stored == read ? "" : fmt::format(", which the model makes of {},", stored);
  const std::string what = is_label ? fmt::format("label {}{} is no class", read, made)
                                    : fmt::format("{}{} is out of range for the {} that reads it",
                                                  read, made, op.empty() ? "node" : op);
  throw Error(ErrorCode::kData, fmt::format("{}: {}", where, what))
      .at({data.data().origin(), {}, {}})
      .expected(error.expectation(), std::move(read))
      .hint(is_label ? error.hint_text()
                     : "do data and model belong together (the size of a vocabulary)?");
}

}  // namespace halfnote
