// tie_weights: makes one parameter of two initializers that hold the same weight (exporters split
// tied weights in two, one of them often transposed).
//
//   --tie emb=head     (x) => <float[5,2] emb, float[2,5] head>     h = Gather (emb, x)
//                                                                   y = MatMul (h, head)
//   ──▶                <float[5,2] emb>      head = Transpose (emb)
//                                            h = Gather (emb, x)    y = MatMul (h, head)
//
// Exact: the values are compared bit for bit, others are an error. The first of the two names
// stays; autodiff sums the gradients of all uses. The parameter is trained where either was chosen.
// Without the flag, float matrices of some size with equal contents that would be trained apart are
// named in a warning: one pass over the bytes of those whose samples agree, nothing is copied; of
// more than looks.h allows the samples alone are compared, and the warning says so.
// Named is also the opposite: a parameter whose first elements are all equal and that several nodes
// read (exporters merge initializers of equal contents, such as all scales that start with 1). One
// warning names them all; none does where a pair of such parameters, no larger, stands apart in the
// file: whoever wrote it merges nothing.
// Leaves alone: what the flag does not name, models that are compiled for inference.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/hash.h"
#include "compiler/onnx/metadata.h"
#include "passes/canonical/looks.h"
#include "passes/exporters/module_names.h"
#include "passes/passes.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

/// Smaller tensors are equal by chance, or because they were initialized alike.
constexpr int64_t kMinNamedElements = 256;
constexpr size_t kMaxNamed = 4;  // partners that one warning names
constexpr int64_t kSamples = 64;

enum class Likeness : uint8_t { kNone, kEqual, kTransposed };

/// Calls `visit` with an unsigned number as wide as an element of the tensor.
template <class Visit>
auto with_bits(const Tensor& tensor, Visit&& visit) {
  switch (tensor.byte_size() / static_cast<size_t>(tensor.size())) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    default:
      return visit(uint64_t{});
  }
}

template <class Bits>
Bits bits_at(const Tensor& tensor, int64_t index) {
  Bits bits;
  std::memcpy(&bits, tensor.bytes() + static_cast<size_t>(index) * sizeof bits, sizeof bits);
  return bits;
}

/// At least two elements, all of the same bits.
bool is_filled(const Tensor& tensor) {
  if (tensor.size() < 2) return false;
  const size_t width = tensor.byte_size() / static_cast<size_t>(tensor.size());
  return std::memcmp(tensor.bytes(), tensor.bytes() + width, tensor.byte_size() - width) == 0;
}

bool is_transposed(const Tensor& a, const Tensor& b) {
  const int64_t rows = a.shape()[0], columns = a.shape()[1];
  return with_bits(a, [&](auto width) {
    using Bits = decltype(width);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        if (bits_at<Bits>(a, r * columns + c) != bits_at<Bits>(b, c * rows + r)) return false;
      }
    }
    return true;
  });
}

bool fits_transposed(const Tensor& a, const Tensor& b) {
  return a.shape().size() == 2 && b.shape().size() == 2 && a.shape()[0] == b.shape()[1] &&
         a.shape()[1] == b.shape()[0];
}

Likeness likeness(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.size() != b.size()) return Likeness::kNone;
  if (identical(a, b)) return Likeness::kEqual;
  if (a.size() == 0 || !fits_transposed(a, b)) return Likeness::kNone;
  return is_transposed(a, b) ? Likeness::kTransposed : Likeness::kNone;
}

/// What a matrix and its transpose have in common, without reading them: type, extents, corners.
std::tuple<DType, Shape, uint64_t, uint64_t> frame_of(const Tensor& tensor) {
  Shape shape = tensor.shape();
  if (shape.size() == 2) std::sort(shape.begin(), shape.end());
  return with_bits(tensor, [&](auto width) {
    using Bits = decltype(width);
    return std::tuple(tensor.dtype(), shape, uint64_t{bits_at<Bits>(tensor, 0)},
                      uint64_t{bits_at<Bits>(tensor, tensor.size() - 1)});
  });
}

/// Calls `visit` with some elements, the same ones for a matrix and its transpose.
template <class Visit>
void visit_samples(const Tensor& tensor, Visit&& visit) {
  const bool matrix = tensor.shape().size() == 2;
  const int64_t rows = matrix ? tensor.shape()[0] : 1;
  const int64_t columns = tensor.size() / rows;
  with_bits(tensor, [&](auto width) {
    using Bits = decltype(width);
    const auto at = [&](int64_t row, int64_t column) {
      visit(uint64_t{bits_at<Bits>(tensor, row * columns + column)});
    };
    const int64_t shorter = std::min(rows, columns), longer = std::max(rows, columns);
    for (int64_t i = 0; i < kSamples; ++i) {
      const int64_t a = i * 31 % shorter, b = (longer - 1) * i / (kSamples - 1);
      // A square matrix does not tell which way it lies.
      if (rows <= columns) at(a, b);
      if (matrix && rows >= columns) at(b, a);
    }
  });
}

/// The same for a matrix and its transpose: most weights differ there, and the others need not be
/// read.
uint64_t hash_of_samples(const Tensor& tensor) {
  uint64_t sum = 0;
  visit_samples(tensor, [&](uint64_t bits) { sum += hash_mix(bits, 1); });
  return sum;
}

bool samples_are_equal(const Tensor& tensor) {
  bool equal = true;
  const uint64_t first =
      with_bits(tensor, [&](auto width) { return uint64_t{bits_at<decltype(width)>(tensor, 0)}; });
  visit_samples(tensor, [&](uint64_t bits) { equal &= bits == first; });
  return equal;
}

/// A hash of the elements in any order; 0 where all are the same (a matrix of zeros is like any
/// other).
uint64_t hash_of_elements(const Tensor& tensor) {
  if (is_filled(tensor)) return 0;
  return with_bits(tensor, [&](auto width) {
    using Bits = decltype(width);
    uint64_t sum = 0;
    for (int64_t i = 0; i < tensor.size(); ++i) sum += hash_mix(bits_at<Bits>(tensor, i), 1);
    return sum | 1;
  });
}

/// `layers.0.linear.weight (val_2)` -> `layers.#.linear.weight`: positions in lists do not count,
/// nor does what the file calls it.
std::string without_numbers(const std::string& shown) {
  const std::string path = shown.substr(0, shown.find(' '));
  std::string text;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, end - at);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    text += (at == 0 ? "" : ".") + (number ? "#" : part);
    at = end + 1;
  }
  return text;
}

class Tying {
 public:
  Tying(Model& model, PassContext& context)
      : graph_(model.graph), context_(context), names_(model) {
    const auto lost = model.metadata.find(std::string(kLostKey));
    has_all_parameters_ = lost != model.metadata.end() && lost->second.empty();
  }

  bool run() {
    for (const std::string& pair : context_.options.train.tied) tie(pair);
    name_split_weights();
    name_merged_parameters();
    return !context_.options.train.tied.empty();
  }

 private:
  [[noreturn]] void reject(SettingText text) const {
    throw SettingError("train.tie", std::move(text)).named(context_.options);
  }

  void tie(const std::string& pair) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      reject({"{train.tie} takes two names", "A=B", "\"" + pair + "\"", {}});
    }
    const ValueId kept = weight(pair.substr(0, equals)), other = weight(pair.substr(equals + 1));
    if (kept == other) {
      reject({"{train.tie} takes two names", "A=B", "\"" + pair + "\"", {}});
    }
    const Tensor a = graph_.value(kept).tensor, b = graph_.value(other).tensor;
    const Likeness like = likeness(a, b);
    if (like == Likeness::kNone) refuse(kept, other);
    choose(kept, other);
    const std::string name = graph_.value(other).name;
    replace(kept, other, like);
    merged_.emplace(name, graph_.value(kept).name);
    context_.note(graph_.value(kept).name,
                  std::string("is one parameter with ") + name +
                      (like == Likeness::kTransposed ? ", which is its transpose" : ""));
  }

  ValueId weight(const std::string& name) const {
    const auto merged = merged_.find(name);
    if (merged != merged_.end()) {
      reject({"{train.tie} names \"" + name + "\" twice",
              {},
              {},
              "it is one with " + merged->second + " already: tie others to that"});
    }
    std::vector<std::string> names;
    for (ValueId id : graph_.initializers()) {
      if (is_float(graph_.value(id).type.dtype)) names.push_back(graph_.value(id).name);
    }
    if (std::find(names.begin(), names.end(), name) != names.end()) return graph_.find(name);
    const std::string_view near = closest(name, names);
    reject({"{train.tie} names no float initializer", "a name of the model", "\"" + name + "\"",
            near.empty() ? "`halfnote inspect MODEL --format text` shows the initializers"
                         : "did you mean " + std::string(near) + "?"});
  }

  [[noreturn]] void refuse(ValueId kept, ValueId other) const {
    const Value &a = graph_.value(kept), &b = graph_.value(other);
    const bool fits = a.type.dtype == b.type.dtype &&
                      (a.tensor.shape() == b.tensor.shape() || fits_transposed(a.tensor, b.tensor));
    reject({"{train.tie} " + a.name + "=" + b.name + ": the " +
                (fits ? "values differ" : "types or shapes differ"),
            "equal contents, or one the transpose of the other",
            to_string(a.type) + " and " + to_string(b.type),
            fits ? "weights that were trained apart are two weights: leave them so" : ""});
  }

  /// One parameter is trained or not.
  void choose(ValueId kept, ValueId other) {
    Value& a = graph_.value(kept);
    const Value& b = graph_.value(other);
    if (a.trainable != b.trainable && !context_.options.train.frozen.empty()) {
      reject({"{train.tie} " + a.name + "=" + b.name + ": one is frozen, the other trained",
              "both or none", (a.trainable ? b.name : a.name) + " frozen",
              "name both with {train.freeze}, or neither"});
    }
    a.trainable |= b.trainable;
    a.frozen = !a.trainable && (a.frozen || b.frozen);
  }

  /// Gives the uses of `other` to `kept`, or to its transpose, which takes the name.
  void replace(ValueId kept, ValueId other, Likeness like) {
    const NodeId first = graph_.first(graph_.main());
    Builder b(graph_, first.valid() ? graph_.before(first) : graph_.end(), context_.infer);
    const auto uses = graph_.uses(other);
    const bool shown =
        !std::all_of(uses.begin(), uses.end(), [](const Use& u) { return u.by_node(); });
    ValueId value = kept;
    if (like == Likeness::kTransposed)
      value = b.transpose(b.value(kept), {1, 0}).id;
    else if (shown)
      value = b.op("Identity", {b.value(kept)}).id;  // an output keeps its name
    const std::string name = graph_.value(other).name;
    graph_.replace_uses(other, value);
    graph_.remove_value(other);
    if (value == kept) return;
    graph_.rename(value, name);
    graph_.node(graph_.value(value).producer).name = name;
  }

  void name_split_weights() {
    std::map<std::tuple<DType, Shape, uint64_t, uint64_t>, std::vector<ValueId>> frames;
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      const bool large =
          value.tensor.shape().size() >= 2 && value.tensor.size() >= kMinNamedElements;
      if (value.trainable && large) frames[frame_of(value.tensor)].push_back(id);
    }
    std::map<ValueId, std::vector<ValueId>> split;
    for (const auto& [frame, values] : frames) {
      if (values.size() == 1) continue;
      std::map<uint64_t, std::vector<ValueId>> alike;
      for (ValueId id : values) alike[hash_of_samples(graph_.value(id).tensor)].push_back(id);
      for (const auto& [samples, group] : alike) {
        if (group.size() > 1) find_equal(group, split);
      }
    }
    for (const auto& [kept, others] : split) warn(kept, others);
  }

  /// Adds the values of the list that are equal, by the first of them; their samples are equal.
  void find_equal(const std::vector<ValueId>& values,
                  std::map<ValueId, std::vector<ValueId>>& split) {
    const bool read = std::all_of(values.begin(), values.end(), [&](ValueId id) {
      return looks_.allow(graph_.value(id).tensor);
    });
    if (read) return compare(values, split);
    if (samples_are_equal(graph_.value(values.front()).tensor)) return;
    split[values.front()].assign(values.begin() + 1, values.end());
    by_samples_.insert(values.front());
  }

  void compare(const std::vector<ValueId>& values,
               std::map<ValueId, std::vector<ValueId>>& split) const {
    std::map<uint64_t, std::vector<ValueId>> firsts;
    for (ValueId id : values) {
      const Tensor& tensor = graph_.value(id).tensor;
      const uint64_t hash = hash_of_elements(tensor);
      if (hash == 0) continue;
      std::vector<ValueId>& candidates = firsts[hash];
      const auto same = std::find_if(candidates.begin(), candidates.end(), [&](ValueId first) {
        return likeness(graph_.value(first).tensor, tensor) != Likeness::kNone;
      });
      if (same == candidates.end())
        candidates.push_back(id);
      else
        split[*same].push_back(id);
    }
  }

  void name_merged_parameters() {
    if (has_all_parameters_) return;
    std::vector<ValueId> merged;
    std::set<std::tuple<DType, Shape, uint64_t>> seen;
    int64_t least_apart = std::numeric_limits<int64_t>::max();
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      const Tensor& tensor = value.tensor;
      if (!value.trainable || tensor.size() < 2 || !samples_are_equal(tensor)) continue;
      if (looks_.allow(tensor) && !is_filled(tensor)) continue;
      const uint64_t first = with_bits(
          tensor, [&](auto width) { return uint64_t{bits_at<decltype(width)>(tensor, 0)}; });
      if (!seen.emplace(tensor.dtype(), tensor.shape(), first).second)
        least_apart = std::min(least_apart, tensor.size());
      if (graph_.users(id).size() >= 2) merged.push_back(id);
    }
    // Exporters merge up to a size (PyTorch's, 1024 elements).
    std::erase_if(merged,
                  [&](ValueId id) { return graph_.value(id).tensor.size() >= least_apart; });
    if (!merged.empty()) warn_of_merged(merged);
  }

  void warn_of_merged(const std::vector<ValueId>& merged) const {
    std::string who = "is one parameter that " +
                      std::to_string(graph_.users(merged.front()).size()) +
                      " nodes read, and all its elements start equal";
    for (size_t i = 1; i < std::min(merged.size(), kMaxNamed); ++i)
      who += (i == 1 ? "; likewise " : ", ") + names_.shown(graph_.value(merged[i]).name);
    if (merged.size() > kMaxNamed)
      who += " and " + std::to_string(merged.size() - kMaxNamed) + " more";
    context_.warn(names_.shown(graph_.value(merged.front()).name),
                  who +
                      "; if the exporter merged several into one, export without optimization "
                      "(PyTorch: optimize=False)");
  }

  /// Weights of layers that a list holds and that were copied, as PyTorch's TransformerEncoder
  /// does, start equal and are meant to part: layers.0.linear.weight, layers.1.linear.weight.
  bool are_copies(ValueId kept, const std::vector<ValueId>& others) const {
    const std::string kind = without_numbers(names_.shown(graph_.value(kept).name));
    return kind.find(".#.") != std::string::npos &&
           std::all_of(others.begin(), others.end(), [&](ValueId other) {
             return without_numbers(names_.shown(graph_.value(other).name)) == kind;
           });
  }

  void warn(ValueId kept, const std::vector<ValueId>& others) const {
    const std::string& name = graph_.value(kept).name;
    if (are_copies(kept, others)) {
      context_.note(names_.shown(name),
                    "starts with the values of " + std::to_string(others.size()) +
                        " others, and they are trained apart, as layers that were copied; if it is "
                        "one layer used several times: --tie " +
                        name + "=" + graph_.value(others.front()).name);
      return;
    }
    std::string names, flags;
    for (size_t i = 0; i < std::min(others.size(), kMaxNamed); ++i) {
      const std::string& other = graph_.value(others[i]).name;
      names += (i == 0 ? "" : ", ") + names_.shown(other);
      flags += " --tie " + name + "=" + other;
    }
    if (others.size() > kMaxNamed) {
      names += " and " + std::to_string(others.size() - kMaxNamed) + " more";
      flags += " …";
    }
    const bool samples = by_samples_.contains(kept);
    context_.warn(names_.shown(name),
                  "has the values of " + names + (samples ? ", as far as samples show" : "") +
                      ", and they are trained apart; if the exporter split one weight:" + flags);
  }

  Graph& graph_;
  PassContext& context_;
  const ParameterNames names_;
  bool has_all_parameters_ = false;  // says the file
  Looks looks_;
  std::set<ValueId> by_samples_;               // whose partners were not read
  std::map<std::string, std::string> merged_;  // the name that went -> the one that stays
};

}  // namespace

bool tie_weights(Model& model, PassContext& context) {
  const bool asked = !context.options.train.tied.empty();
  if (context.options.inference_only || model.is_training()) {
    if (!asked) return false;
    throw Error(ErrorCode::kUsage, "--tie makes one parameter of two, for training")
        .expected("a forward model to train",
                  model.is_training() ? "a training model" : "--inference");
  }
  return Tying(model, context).run();
}

}  // namespace halfnote
