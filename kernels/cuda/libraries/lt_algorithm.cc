#include "kernels/cuda/libraries/lt_algorithm.h"

#include <charconv>

namespace halfnote::libraries {

namespace {

/// Takes `word` and a number behind it from the front of `text`.
template <class T>
bool take(std::string_view& text, std::string_view word, T& number) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string name_of(const LtAlgorithm& a) {
  return "lt:" + std::to_string(a.id) + ":tile" + std::to_string(a.tile) + ":stages" +
         std::to_string(a.stages) + ":split" + std::to_string(a.split_k) + ":sum" +
         std::to_string(a.reduction) + ":swizzle" + std::to_string(a.swizzle) + ":option" +
         std::to_string(a.option) + ":inner" + std::to_string(a.inner_shape) + ":cluster" +
         std::to_string(a.cluster_shape);
}

std::optional<LtAlgorithm> lt_algorithm(std::string_view name) {
  LtAlgorithm a;
  std::string_view rest = name;
  const bool whole = take(rest, "lt:", a.id) && take(rest, ":tile", a.tile) &&
                     take(rest, ":stages", a.stages) && take(rest, ":split", a.split_k) &&
                     take(rest, ":sum", a.reduction) && take(rest, ":swizzle", a.swizzle) &&
                     take(rest, ":option", a.option) && take(rest, ":inner", a.inner_shape) &&
                     take(rest, ":cluster", a.cluster_shape);
  if (!whole || !rest.empty() || name_of(a) != name) return std::nullopt;
  return a;
}

}  // namespace halfnote::libraries
