// A node has a handful of attributes: a sorted vector beats a tree and prints in one order.
#include "base/attribute.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr std::array<std::string_view, 12> kKindNames = {
    "an int", "a float", "a string", "a tensor",      "a graph",          "a type",
    "ints",   "floats",  "strings",  "a tensor list", "a list of graphs", "a reference"};

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T>
const T* typed(const Attributes& attributes, std::string_view name) {
  const Attribute* found = attributes.find(name);
  if (found == nullptr) return nullptr;
  if (const T* value = std::get_if<T>(found)) return value;
  throw Error(ErrorCode::kModel, "attribute \"" + std::string(name) + "\" has the wrong type")
      .expected(std::string(kKindNames[Attribute(T{}).index()]),
                std::string(kKindNames[found->index()]));
}

}  // namespace

bool equal(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<float>(&a)) return same_bits(*x, std::get<float>(b));
  if (const auto* x = std::get_if<Tensor>(&a)) return identical(*x, std::get<Tensor>(b));
  if (const auto* x = std::get_if<std::vector<float>>(&a)) {
    const auto& y = std::get<std::vector<float>>(b);
    return std::equal(x->begin(), x->end(), y.begin(), y.end(), same_bits);
  }
  if (const auto* x = std::get_if<std::vector<Tensor>>(&a)) {
    const auto& y = std::get<std::vector<Tensor>>(b);
    return std::equal(x->begin(), x->end(), y.begin(), y.end(), identical);
  }
  if (const auto* x = std::get_if<int64_t>(&a)) return *x == std::get<int64_t>(b);
  if (const auto* x = std::get_if<std::string>(&a)) return *x == std::get<std::string>(b);
  if (const auto* x = std::get_if<RegionId>(&a)) return *x == std::get<RegionId>(b);
  if (const auto* x = std::get_if<ValueType>(&a)) return *x == std::get<ValueType>(b);
  if (const auto* x = std::get_if<std::vector<int64_t>>(&a)) {
    return *x == std::get<std::vector<int64_t>>(b);
  }
  if (const auto* x = std::get_if<std::vector<std::string>>(&a)) {
    return *x == std::get<std::vector<std::string>>(b);
  }
  if (const auto* x = std::get_if<std::vector<RegionId>>(&a)) {
    return *x == std::get<std::vector<RegionId>>(b);
  }
  return std::get<AttributeReference>(a) == std::get<AttributeReference>(b);
}

void Attributes::set(std::string_view name, Attribute value) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.first < n; });
  if (at != entries_.end() && at->first == name) {
    at->second = std::move(value);
    return;
  }
  entries_.insert(at, {std::string(name), std::move(value)});
}

void Attributes::erase(std::string_view name) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == name; });
}

const Attribute* Attributes::find(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.first < n; });
  return at != entries_.end() && at->first == name ? &at->second : nullptr;
}

int64_t Attributes::get_int(std::string_view name, int64_t fallback) const {
  const auto* value = typed<int64_t>(*this, name);
  return value == nullptr ? fallback : *value;
}

float Attributes::get_float(std::string_view name, float fallback) const {
  const auto* value = typed<float>(*this, name);
  return value == nullptr ? fallback : *value;
}

std::string Attributes::get_string(std::string_view name, std::string_view fallback) const {
  const auto* value = typed<std::string>(*this, name);
  return value == nullptr ? std::string(fallback) : *value;
}

std::vector<int64_t> Attributes::get_ints(std::string_view name,
                                          std::vector<int64_t> fallback) const {
  const auto* value = typed<std::vector<int64_t>>(*this, name);
  return value == nullptr ? std::move(fallback) : *value;
}

std::vector<float> Attributes::get_floats(std::string_view name,
                                          std::vector<float> fallback) const {
  const auto* value = typed<std::vector<float>>(*this, name);
  return value == nullptr ? std::move(fallback) : *value;
}

bool operator==(const Attributes& a, const Attributes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && equal(x.second, y.second);
  });
}

}  // namespace halfnote
