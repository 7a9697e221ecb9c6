// Attributes of an operator, by name. The kernels see them too, so they live here and know no
// graph: a subgraph is only the handle of a region.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/handle.h"
#include "base/tensor.h"
#include "base/type.h"

namespace halfnote {

/// In a function body: the value comes from the caller's attribute of this name.
struct AttributeReference {
  std::string name;
  int onnx_type = 0;  // AttributeProto.AttributeType
  friend bool operator==(const AttributeReference&, const AttributeReference&) = default;
};

using Attribute = std::variant<int64_t, float, std::string, Tensor, RegionId, ValueType,
                               std::vector<int64_t>, std::vector<float>, std::vector<std::string>,
                               std::vector<Tensor>, std::vector<RegionId>, AttributeReference>;

/// Byte-wise equality, so that two attributes are equal exactly when they print the same.
bool equal(const Attribute& a, const Attribute& b);

/// A small map kept sorted by name, so that iteration is always in one order.
class Attributes {
 public:
  using Entry = std::pair<std::string, Attribute>;

  Attributes() = default;
  Attributes(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) set(entry.first, entry.second);
  }
  void set(std::string_view name, Attribute value);
  void erase(std::string_view name);
  const Attribute* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// The value, or `fallback` when the attribute is absent; throws Error(kModel) when it has
  /// another type.
  int64_t get_int(std::string_view name, int64_t fallback) const;
  float get_float(std::string_view name, float fallback) const;
  std::string get_string(std::string_view name, std::string_view fallback) const;
  std::vector<int64_t> get_ints(std::string_view name, std::vector<int64_t> fallback = {}) const;
  std::vector<float> get_floats(std::string_view name, std::vector<float> fallback = {}) const;

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

bool operator==(const Attributes& a, const Attributes& b);

}  // namespace halfnote
