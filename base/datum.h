// What an edge of a graph carries at run time: a tensor, a sequence, an optional value, or nothing.
// Programs only know tensors; the interpreter and the readers of test data know all four.
#pragma once

#include <utility>
#include <vector>

#include "base/tensor.h"
#include "base/type.h"

namespace halfnote {

struct Datum {
  TypeKind kind = TypeKind::kUnknown;  // kUnknown: absent; kTensor, kSequence or kOptional
  Tensor tensor;
  std::vector<Datum> elements;  // of a sequence; of an optional: none or one

  Datum() = default;
  /// A tensor; absent when it is undefined.
  Datum(Tensor value)  // NOLINT(google-explicit-constructor): a tensor is a datum
      : kind(value.defined() ? TypeKind::kTensor : TypeKind::kUnknown), tensor(std::move(value)) {}
  static Datum sequence(std::vector<Datum> elements) {
    Datum datum;
    datum.kind = TypeKind::kSequence;
    datum.elements = std::move(elements);
    return datum;
  }
  /// An optional that holds `elements`, none or one.
  static Datum optional(std::vector<Datum> elements) {
    Datum datum = sequence(std::move(elements));
    datum.kind = TypeKind::kOptional;
    return datum;
  }

  bool present() const { return kind != TypeKind::kUnknown; }
  bool is_tensor() const { return kind == TypeKind::kTensor; }
  bool is_sequence() const { return kind == TypeKind::kSequence; }
  bool is_optional() const { return kind == TypeKind::kOptional; }
};

}  // namespace halfnote
