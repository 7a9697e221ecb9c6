// Strings: comparing, joining, splitting, matching, and casts from and to numbers. A number is
// written as short as it can be read back, as NumPy does for decimals of its own precision.
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "kernels/cpu/dynamic/parts.h"

namespace halfnote::cpu {

namespace {

using Strings = std::vector<std::string>;

bool takes_strings(const DynamicCall& call) {
  return call.has_input(0) && call.inputs[0].dtype() == DType::kString;
}

const Strings& strings(const DynamicCall& call, size_t index) {
  const Tensor& tensor = required(call, index);
  if (tensor.dtype() == DType::kString) return tensor.string_data();
  throw data_error(call, "input " + std::to_string(index) + " has no strings");
}

/// Calls `f(a, b)` for every element of the broadcast shape, which it returns.
template <class F>
Shape for_each_pair(const DynamicCall& call, F&& f) {
  const Strings &a = strings(call, 0), &b = strings(call, 1);
  const Shape left = call.inputs[0].shape(), right = call.inputs[1].shape();
  const Shape out = broadcast_shapes(left, right);
  const Shape strides = strides_of(out);
  const auto place = [&](const Shape& shape, int64_t index) {
    const Shape own = strides_of(shape);
    const size_t lead = out.size() - shape.size();
    int64_t at = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t position = index / strides[lead + d] % out[lead + d];
      if (shape[d] != 1) at += position * own[d];
    }
    return static_cast<size_t>(at);
  };
  for (int64_t i = 0; i < element_count(out); ++i) f(a[place(left, i)], b[place(right, i)]);
  return out;
}

std::vector<Tensor> run_concat(const DynamicCall& call) {
  Strings joined;
  const Shape shape = for_each_pair(
      call, [&](const std::string& a, const std::string& b) { joined.push_back(a + b); });
  return {Tensor::strings(shape, std::move(joined))};
}

std::vector<Tensor> run_equal(const DynamicCall& call) {
  std::vector<uint8_t> same;
  const Shape shape = for_each_pair(call, [&](const std::string& a, const std::string& b) {
    same.push_back(static_cast<uint8_t>(a == b ? 1 : 0));
  });
  Tensor result(DType::kBool, shape);
  std::transform(same.begin(), same.end(), result.mutable_data<bool>().begin(),
                 [](uint8_t is_same) { return is_same != 0; });
  return {result};
}

/// At most `most` cuts (negative: no limit). Without a delimiter words are what stands between runs
/// of white space.
Strings split_one(std::string_view text, const std::string& delimiter, int64_t most) {
  constexpr std::string_view kSpace = " \t\n\r\v\f";
  Strings parts;
  const bool by_space = delimiter.empty();
  if (by_space) {
    const size_t begin = text.find_first_not_of(kSpace);
    text = begin == std::string_view::npos ? std::string_view{} : text.substr(begin);
    if (text.empty()) return parts;
  }
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t cut = by_space ? text.find_first_of(kSpace) : text.find(delimiter);
    if (cut == std::string_view::npos) break;
    const size_t next = by_space ? text.find_first_not_of(kSpace, cut) : cut + delimiter.size();
    parts.emplace_back(text.substr(0, cut));
    if (next == std::string_view::npos) return parts;
    text = text.substr(next);
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<Tensor> run_split(const DynamicCall& call) {
  const Strings& x = strings(call, 0);
  const std::string delimiter = call.attributes.get_string("delimiter", "");
  const int64_t most = call.attributes.get_int("maxsplit", -1);
  std::vector<Strings> parts;
  std::vector<int64_t> counts;
  size_t longest = 0;
  for (const std::string& text : x) {
    parts.push_back(split_one(text, delimiter, most));
    counts.push_back(static_cast<int64_t>(parts.back().size()));
    longest = std::max(longest, parts.back().size());
  }
  Strings all;
  for (Strings& row : parts) {
    row.resize(longest);
    all.insert(all.end(), row.begin(), row.end());
  }
  Shape shape = call.inputs[0].shape();
  const Tensor number = Tensor::of<int64_t>(shape, counts);
  shape.push_back(static_cast<int64_t>(longest));
  return {Tensor::strings(std::move(shape), std::move(all)), number};
}

/// Case without accents or other scripts: what every locale agrees on.
std::string change_case(const DynamicCall& call, std::string text, const std::string& action) {
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x80) {
      throw Error(ErrorCode::kUnsupported, "case of letters outside of ASCII")
          .at({.op = std::string(call.op)});
    }
    if (action == "LOWER" && letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
    if (action == "UPPER" && letter >= 'a' && letter <= 'z') letter -= 'a' - 'A';
  }
  return text;
}

/// (C) or (1, C): whole elements that are stop words go, and all others change their case.
std::vector<Tensor> run_normalize(const DynamicCall& call) {
  const std::string action = call.attributes.get_string("case_change_action", "NONE");
  const bool exact = call.attributes.get_int("is_case_sensitive", 0) != 0;
  Strings words;
  if (const Attribute* given = call.attributes.find("stopwords")) {
    if (const auto* list = std::get_if<Strings>(given)) words = *list;
  }
  const auto key = [&](const std::string& text) {
    return exact ? text : change_case(call, text, "LOWER");
  };
  std::set<std::string> stops;
  for (const std::string& word : words) stops.insert(key(word));
  Strings kept;
  for (const std::string& text : strings(call, 0)) {
    if (!stops.contains(stops.empty() ? text : key(text)))
      kept.push_back(action == "NONE" ? text : change_case(call, text, action));
  }
  if (kept.empty()) kept.emplace_back();
  Shape shape = call.inputs[0].shape();
  if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[0] != 1)) {
    throw data_error(call, "needs strings of shape [C] or [1,C]");
  }
  shape.back() = static_cast<int64_t>(kept.size());
  return {Tensor::strings(std::move(shape), std::move(kept))};
}

std::vector<Tensor> run_match(const DynamicCall& call) {
  const re2::RE2 pattern(call.attributes.get_string("pattern", ""), re2::RE2::Quiet);
  if (!pattern.ok()) throw data_error(call, "bad pattern: " + pattern.error());
  const Strings& x = strings(call, 0);
  Tensor result(DType::kBool, call.inputs[0].shape());
  const auto to = result.mutable_data<bool>();
  for (size_t i = 0; i < x.size(); ++i) to[i] = re2::RE2::FullMatch(x[i], pattern);
  return {result};
}

std::string write_number(const Tensor& tensor, int64_t index) {
  if (tensor.dtype() == DType::kBool) return tensor.at_as_int(index) != 0 ? "True" : "False";
  if (!is_float(tensor.dtype())) return std::to_string(tensor.at_as_int(index));
  const double value = tensor.at_as_double(index);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  const bool wide = tensor.dtype() == DType::kF64;
  const auto end = wide ? std::to_chars(text, text + sizeof(text), value)
                        : std::to_chars(text, text + sizeof(text), static_cast<float>(value));
  std::string written(text, end.ptr);
  if (written.find_first_of(".e") == std::string::npos) written += ".0";
  return written;
}

double read_number(const DynamicCall& call, const std::string& text) {
  const char* first = text.data();
  const char* last = first + text.size();
  if (first != last && *first == '+') ++first;
  double value = 0;
  const auto [end, code] = std::from_chars(first, last, value);  // knows inf and nan
  if (code == std::errc() && end == last) return value;
  throw data_error(call, "\"" + text.substr(0, 40) + "\" is no number");
}

bool casts_text(const DynamicCall& call) {
  const bool to_text =
      call.op == "Cast" ? call.attributes.get_int("to", 0) == static_cast<int64_t>(DType::kString)
                        : call.has_input(1) && call.inputs[1].dtype() == DType::kString;
  return to_text || takes_strings(call);
}

std::vector<Tensor> run_cast(const DynamicCall& call) {
  const Tensor& x = required(call, 0);
  const DType to = call.op == "Cast" ? static_cast<DType>(call.attributes.get_int("to", 0))
                                     : required(call, 1).dtype();
  if (x.dtype() == to) return {x};
  if (to == DType::kString) {
    Strings texts;
    for (int64_t i = 0; i < x.size(); ++i) texts.push_back(write_number(x, i));
    return {Tensor::strings(x.shape(), std::move(texts))};
  }
  Tensor numbers(DType::kF64, x.shape());
  for (int64_t i = 0; i < x.size(); ++i)
    numbers.mutable_data<double>()[static_cast<size_t>(i)] =
        read_number(call, x.string_data()[static_cast<size_t>(i)]);
  return {numbers.cast_to(to)};
}

}  // namespace

std::vector<DynamicRow> text_dynamic_rows() {
  return {
      {"", "Cast", casts_text, run_cast},
      {"", "CastLike", casts_text, run_cast},
      {"", "Equal", takes_strings, run_equal},
      {"", "RegexFullMatch", takes_strings, run_match},
      {"", "StringConcat", takes_strings, run_concat},
      {"", "StringNormalizer", takes_strings, run_normalize},
      {"", "StringSplit", takes_strings, run_split},
  };
}

}  // namespace halfnote::cpu
