// Reading and writing operands whose float type is only known at prepare time. Contractions and
// parameters of normalizations mix types (16-bit data, f32 statistics), and a dispatch over every
// combination would be a template for each; here a kernel is written for its math type M alone, f32
// or f64.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

/// f64, f32, f16 or bf16.
bool is_real(DType dtype);
/// f32, f16 or bf16: the floats that own kernels compute in f32.
inline bool is_small_float(DType dtype) { return dtype == DType::kF32 || is_16bit_float(dtype); }

/// Elements [begin, begin + count) of `from`, converted to M (float or double).
template <class M>
void load_reals(const std::byte* from, DType dtype, int64_t begin, int64_t count, M* to);
/// Writes `count` values from element `begin` on, rounded once to `dtype`.
template <class M>
void store_reals(const M* from, int64_t count, DType dtype, std::byte* to, int64_t begin);

/// One element as a double.
double read_real(const std::byte* from, DType dtype, int64_t index);
/// One element, rounded once.
void write_real(double value, std::byte* to, DType dtype, int64_t index);
void write_real(float value, std::byte* to, DType dtype, int64_t index);

/// All `count` elements in M: `from` itself where it has that type, else converted into `room`
/// (parallel).
template <class M>
const M* all_reals(const std::byte* from, DType dtype, int64_t count, M* room, int threads);
/// Elements of M that all_reals() needs as room.
template <class M>
int64_t room_for_reals(const Operand& operand) {
  return operand.present() && operand.dtype != dtype_of<M>() ? operand.size() : 0;
}

/// Calls `body.template operator()<M>()` with the math type of `dtype`: double for f64, float for
/// the other floats.
template <class Body>
Prepared for_math_type(DType dtype, Body&& body) {
  if (dtype == DType::kF64) return body.template operator()<double>();
  if (is_real(dtype)) return body.template operator()<float>();
  return Prepared::no("no float type: " + std::string(short_name(dtype)));
}

/// A model error at the operator of `call`.
inline Error model_error(const KernelCall& call, std::string what) {
  return Error(ErrorCode::kModel, std::move(what)).at({.op = std::string(call.op)});
}

/// Bytes rounded up to the 64 that every buffer is aligned to.
inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Hands out the parts of a workspace, each aligned to 64 bytes, in the order they were asked for.
class WorkspacePlan {
 public:
  /// The offset of a new part.
  size_t add(size_t bytes) {
    const size_t offset = size_;
    size_ += aligned(bytes);
    return offset;
  }
  template <class M>
  size_t add_elements(int64_t count) {
    return add(static_cast<size_t>(count) * sizeof(M));
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

template <class M>
M* part(const KernelBuffers& buffers, size_t offset) {
  return reinterpret_cast<M*>(buffers.workspace + offset);
}

}  // namespace halfnote::cpu
