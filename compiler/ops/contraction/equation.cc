#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "compiler/ops/contraction/einsum.h"

namespace halfnote::contraction {
namespace {

constexpr int kEllipsis = 256;  // its dims are labels below this, the last one kEllipsis - 1

[[noreturn]] void malformed(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::kModel, "malformed einsum equation: " + why)
      .expected("letters, commas, one \"...\" per term and one \"->\"", std::string(text));
}

/// One term as labels, its ellipsis as kEllipsis.
Labels parse_term(std::string_view term, std::string_view text) {
  Labels labels;
  for (size_t i = 0; i < term.size(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
      labels.push_back(term[i]);
      continue;
    }
    if (term.substr(i, 3) != "...") malformed(text, "an unexpected character");
    if (std::find(labels.begin(), labels.end(), kEllipsis) != labels.end()) {
      malformed(text, "a term has two ellipses");
    }
    labels.push_back(kEllipsis);
    i += 2;
  }
  return labels;
}

/// The labels of `dims` dims in place of the ellipsis.
Labels spread(const Labels& term, int dims) {
  Labels labels;
  for (int label : term) {
    if (label != kEllipsis) labels.push_back(label);
    if (label != kEllipsis) continue;
    for (int i = dims; i > 0; --i) labels.push_back(kEllipsis - i);
  }
  return labels;
}

Labels implicit_result(const std::vector<Labels>& operands, int dims) {
  std::map<int, int> counts;
  for (const Labels& operand : operands) {
    for (int label : operand) ++counts[label];
  }
  Labels result = spread({kEllipsis}, dims);
  for (const auto& [label, count] : counts) {
    if (label < kEllipsis - dims && count == 1) result.push_back(label);
  }
  return result;
}

void check_result(const Equation& equation, std::string_view text) {
  Labels sorted = equation.result;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    malformed(text, "the result names a dim twice");
  }
  for (int label : equation.result) {
    const bool known =
        std::any_of(equation.operands.begin(), equation.operands.end(), [&](const Labels& operand) {
          return std::find(operand.begin(), operand.end(), label) != operand.end();
        });
    if (!known) malformed(text, "the result names a dim that no operand has");
  }
}

}  // namespace

Equation parse_equation(std::string_view text, const std::vector<int>& ranks) {
  std::string plain;
  for (char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) plain += c;
  }
  const size_t arrow = plain.find("->");
  std::string left = plain.substr(0, arrow);
  std::vector<Labels> terms;
  for (size_t from = 0; from <= left.size();) {
    const size_t comma = std::min(left.find(',', from), left.size());
    terms.push_back(parse_term(std::string_view(left).substr(from, comma - from), text));
    from = comma + 1;
  }
  if (terms.size() != ranks.size()) {
    malformed(text, "it has " + std::to_string(terms.size()) + " terms for " +
                        std::to_string(ranks.size()) + " operands");
  }
  Equation equation;
  int dims = 0;  // of the ellipsis
  for (size_t i = 0; i < terms.size(); ++i) {
    const bool open = std::find(terms[i].begin(), terms[i].end(), kEllipsis) != terms[i].end();
    const int rest = ranks[i] - static_cast<int>(terms[i].size()) + (open ? 1 : 0);
    if (rest < 0 || (!open && rest != 0)) {
      malformed(text, "operand " + std::to_string(i) + " has rank " + std::to_string(ranks[i]));
    }
    equation.operands.push_back(spread(terms[i], rest));
    dims = std::max(dims, rest);
  }
  equation.result = arrow == std::string::npos
                        ? implicit_result(equation.operands, dims)
                        : spread(parse_term(std::string_view(plain).substr(arrow + 2), text), dims);
  check_result(equation, text);
  return equation;
}

}  // namespace halfnote::contraction
