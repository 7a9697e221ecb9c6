#include "base/ops/recurrence.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

/// A function that needs a number for which ONNX has no default says so.
struct KindRow {
  ActivationKind kind;
  std::string_view name;
  bool has_alpha, has_beta, needs_numbers;
  float alpha, beta;  // defaults: those of the operator of that name
};

constexpr KindRow kKinds[] = {
    {ActivationKind::kAffine, "Affine", true, true, true, 0, 0},
    {ActivationKind::kElu, "Elu", true, false, false, 1, 0},
    {ActivationKind::kHardSigmoid, "HardSigmoid", true, true, false, 0.2f, 0.5f},
    {ActivationKind::kLeakyRelu, "LeakyRelu", true, false, false, 0.01f, 0},
    {ActivationKind::kRelu, "Relu", false, false, false, 0, 0},
    {ActivationKind::kScaledTanh, "ScaledTanh", true, true, true, 0, 0},
    {ActivationKind::kSigmoid, "Sigmoid", false, false, false, 0, 0},
    {ActivationKind::kSoftplus, "Softplus", false, false, false, 0, 0},
    {ActivationKind::kSoftsign, "Softsign", false, false, false, 0, 0},
    {ActivationKind::kTanh, "Tanh", false, false, false, 0, 0},
    {ActivationKind::kThresholdedRelu, "ThresholdedRelu", true, false, false, 1, 0},
};

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

const KindRow& kind_row(const std::string& name) {
  for (const KindRow& row : kKinds) {
    if (same_word(row.name, name)) return row;
  }
  std::string known;
  for (const KindRow& row : kKinds) known += (known.empty() ? "" : " ") + std::string(row.name);
  throw Error(ErrorCode::kModel, "unknown activation of a recurrent op").expected(known, name);
}

const KindRow& kind_row(ActivationKind kind) {
  return *std::find_if(std::begin(kKinds), std::end(kKinds),
                       [kind](const KindRow& row) { return row.kind == kind; });
}

/// The numbers of activation_alpha or activation_beta, handed out to the functions that take one.
class Numbers {
 public:
  Numbers(const Attributes& attributes, const char* name)
      : name_(name), numbers_(attributes.get_floats(name)) {}

  float next(const KindRow& row, float fallback) {
    if (at_ < numbers_.size()) return numbers_[at_++];
    if (!row.needs_numbers) return fallback;
    throw Error(ErrorCode::kModel, std::string(name_) + " has too few numbers")
        .expected("one for each " + std::string(row.name), std::to_string(numbers_.size()));
  }

 private:
  const char* name_;
  std::vector<float> numbers_;
  size_t at_ = 0;
};

std::vector<std::string> default_activations(const Recurrence& r) {
  std::vector<std::string> names;
  for (int64_t d = 0; d < r.directions(); ++d) {
    if (r.op != RecurrentOp::kRnn) names.emplace_back("Sigmoid");
    names.emplace_back("Tanh");
    if (r.op == RecurrentOp::kLstm) names.emplace_back("Tanh");
  }
  return names;
}

void read_activations(const Attributes& attributes, Recurrence& r) {
  std::vector<std::string> names = default_activations(r);
  if (const Attribute* given = attributes.find("activations")) {
    const auto* list = std::get_if<std::vector<std::string>>(given);
    if (list == nullptr || list->size() != names.size()) {
      throw Error(ErrorCode::kModel, "attribute activations does not fit the op and its directions")
          .expected(std::to_string(names.size()) + " names",
                    list == nullptr ? "no list of strings" : std::to_string(list->size()));
    }
    names = *list;
  }
  Numbers alpha(attributes, "activation_alpha"), beta(attributes, "activation_beta");
  for (const std::string& name : names) {
    const KindRow& row = kind_row(name);
    Activation activation{row.kind, row.alpha, row.beta};
    if (row.has_alpha) activation.alpha = alpha.next(row, row.alpha);
    if (row.has_beta) activation.beta = beta.next(row, row.beta);
    r.activations.push_back(activation);
  }
}

void read_direction(const Attributes& attributes, Recurrence& r) {
  const std::string direction = attributes.get_string("direction", "forward");
  if (direction == "reverse") {
    r.reverse = {true};
  } else if (direction == "bidirectional") {
    r.reverse = {false, true};
  } else if (direction != "forward") {
    throw Error(ErrorCode::kModel, "unknown direction of a recurrent op")
        .expected("forward, reverse or bidirectional", direction);
  }
}

bool read_flag(const Attributes& attributes, const char* name) {
  const int64_t value = attributes.get_int(name, 0);
  if (value == 0 || value == 1) return value == 1;
  throw Error(ErrorCode::kModel, std::string("attribute ") + name + " is no flag")
      .expected("0 or 1", std::to_string(value));
}

}  // namespace

std::string_view activation_name(ActivationKind kind) { return kind_row(kind).name; }
bool takes_alpha(ActivationKind kind) { return kind_row(kind).has_alpha; }
bool takes_beta(ActivationKind kind) { return kind_row(kind).has_beta; }

std::optional<RecurrentOp> recurrent_op(std::string_view op_type) {
  if (op_type == "RNN" || op_type == "RNNGrad") return RecurrentOp::kRnn;
  if (op_type == "GRU" || op_type == "GRUGrad") return RecurrentOp::kGru;
  if (op_type == "LSTM" || op_type == "LSTMGrad") return RecurrentOp::kLstm;
  return std::nullopt;
}

Recurrence recurrence_of(RecurrentOp op, const Attributes& attributes, int64_t hidden) {
  Recurrence r;
  r.op = op;
  read_direction(attributes, r);
  read_activations(attributes, r);
  r.batch_first = read_flag(attributes, "layout");
  r.coupled = op == RecurrentOp::kLstm && read_flag(attributes, "input_forget");
  r.linear_before_reset = op == RecurrentOp::kGru && read_flag(attributes, "linear_before_reset");
  if (attributes.has("clip")) {
    r.clip = attributes.get_float("clip", 0);
    if (!(*r.clip > 0)) {
      throw Error(ErrorCode::kModel, "attribute clip is no bound")
          .expected("a number above 0", std::to_string(*r.clip))
          .hint("leave clip out for no bound");
    }
  }
  r.reserve = attributes.get_int("reserve", 0);
  if (r.reserve < 0) {
    throw Error(ErrorCode::kModel, "attribute reserve is no number of bytes")
        .expected("0 or more", std::to_string(r.reserve));
  }
  const int64_t declared = attributes.get_int("hidden_size", hidden);
  if (hidden >= 0 && declared != hidden) {
    throw Error(ErrorCode::kModel, "attribute hidden_size is not the last dim of R")
        .expected(std::to_string(hidden), std::to_string(declared));
  }
  return r;
}

}  // namespace halfnote
