#include "kernels/cuda/libraries/lt_request.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace halfnote::libraries {

namespace {

/// What every buffer of a plan has. Some have more, by where they happen to lie: asked with that,
/// the library might take another algorithm, and give other bits, in a plan that lays them out
/// otherwise.
constexpr uint32_t kMostAlignment = 64;

/// The largest power of two up to that which divides all addresses.
uint32_t common_alignment(const LtOperands& operands) {
  const uintptr_t all =
      reinterpret_cast<uintptr_t>(operands.a) | reinterpret_cast<uintptr_t>(operands.b) |
      reinterpret_cast<uintptr_t>(operands.d) | reinterpret_cast<uintptr_t>(operands.bias) |
      reinterpret_cast<uintptr_t>(operands.aux) | reinterpret_cast<uintptr_t>(operands.sums) |
      kMostAlignment;
  return static_cast<uint32_t>(all & (~all + 1));
}

/// The rows of the table of supported types that we use.
bool types_are_supported(const LtRequest& r) {
  if (r.a.dtype != r.b.dtype || r.scale != r.compute) return false;
  if (r.a.dtype == DType::kF64) return r.compute == DType::kF64 && r.d.dtype == DType::kF64;
  if (r.compute != DType::kF32 || (r.tf32 && r.a.dtype != DType::kF32)) return false;
  if (r.a.dtype == DType::kF32) return r.d.dtype == DType::kF32;
  return is_16bit_float(r.a.dtype) && (r.d.dtype == r.a.dtype || r.d.dtype == DType::kF32);
}

std::string illegal_matrix(const LtMatrix& m, std::string_view name) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::string of = " of " + std::string(name);
  if (m.rows <= 0 || m.columns <= 0 || m.batches <= 0) return "no elements" + of;
  if (std::max({m.rows, m.columns, m.leading, m.batches}) > kMost) return "too large extents" + of;
  if (m.leading < m.rows) return "a leading dimension below the rows" + of;
  if (m.stride < 0) return "a negative stride" + of;
  return {};
}

/// Elements from the first to behind the last.
int64_t extent(const LtMatrix& m) {
  return (m.batches - 1) * m.stride + (m.columns - 1) * m.leading + m.rows;
}

bool overlap(const void* x, const LtMatrix& of_x, const void* y, const LtMatrix& of_y) {
  const auto first_x = reinterpret_cast<uintptr_t>(x), first_y = reinterpret_cast<uintptr_t>(y);
  const uintptr_t behind_x = first_x + static_cast<size_t>(extent(of_x)) * size_of(of_x.dtype);
  const uintptr_t behind_y = first_y + static_cast<size_t>(extent(of_y)) * size_of(of_y.dtype);
  return first_x < behind_y && first_y < behind_x;
}

std::string illegal_address(const void* address, const LtMatrix& matrix, uint32_t alignment,
                            std::string_view name) {
  const std::string of = " of " + std::string(name);
  const auto value = reinterpret_cast<uintptr_t>(address);
  if (value == 0) return "no address" + of;
  if (value % size_of(matrix.dtype) != 0) return "an address not aligned to the elements" + of;
  return value % alignment == 0 ? "" : "an address not aligned as promised" + of;
}

/// Which of bias, aux and sums go with the epilogue.
std::string illegal_parts(const LtRequest& r) {
  const bool has_aux = r.aux != DType::kUndefined;
  if (r.has_bias && r.epilogue != Epilogue::kNone && !is_activation(r.epilogue))
    return "a bias beside a gradient or sums";
  if (has_aux && !is_activation(r.epilogue) && !is_gradient(r.epilogue))
    return "an auxiliary matrix that nothing asks for";
  if (is_gradient(r.epilogue) && !has_aux) return "a gradient without its auxiliary matrix";
  if (sums_operand(r.epilogue) && !r.has_sums) return "sums of an operand that go nowhere";
  if (r.has_sums && !sums_operand(r.epilogue) && !is_gradient(r.epilogue))
    return "sums that nothing asks for";
  return {};
}

std::string illegal_aux(const LtRequest& r) {
  const bool bits = has_bits(r.epilogue);
  if (r.aux != (bits ? DType::kU8 : r.d.dtype)) return "an auxiliary matrix of another type";
  const int64_t group = bits ? kLtBits : kLtAuxElements;
  if (r.aux_leading < r.d.rows) return "a leading dimension below the rows of aux";
  if (r.aux_leading % group != 0 || r.aux_stride % group != 0)
    return "an auxiliary matrix whose columns are no whole groups";
  return {};
}

std::string illegal_epilogue(const LtRequest& r, const LtOperands& operands) {
  if (std::string why = illegal_parts(r); !why.empty()) return why;
  if (r.epilogue == Epilogue::kNone) return {};
  if (r.d.batches != 1 || r.d.dtype == DType::kF64) return "an epilogue of a stack, or in f64";
  struct Part {
    const void* at;
    LtMatrix matrix;
    uint32_t alignment;
    const char* name;
  };
  std::vector<Part> parts;
  if (r.aux != DType::kUndefined) {
    if (std::string why = illegal_aux(r); !why.empty()) return why;
    const int64_t leading = has_bits(r.epilogue) ? r.aux_leading / 8 : r.aux_leading;
    const int64_t rows = has_bits(r.epilogue) ? leading : r.d.rows;
    parts.push_back({operands.aux,
                     {r.aux, rows, r.d.columns, leading},
                     std::max(r.alignment, kLtAuxAlignment),
                     "aux"});
  }
  if (r.has_sums) {
    const int64_t count = elements_of_sums(r);
    parts.push_back({operands.sums, {r.d.dtype, count, 1, count}, r.alignment, "the sums"});
  }
  for (const Part& part : parts) {
    std::string why = illegal_address(part.at, part.matrix, part.alignment, part.name);
    if (!why.empty()) return why;
    for (const auto& [at, matrix] : {std::pair(operands.a, r.a), std::pair(operands.b, r.b),
                                     std::pair<const void*, LtMatrix>(operands.d, r.d)}) {
      if (overlap(part.at, part.matrix, at, matrix)) return "a result over an operand";
    }
  }
  return {};
}

}  // namespace

LtRequest lt_request(const MatmulProblem& p, const LtOperands& operands) {
  LtRequest r;
  r.compute = r.scale = p.ab == DType::kF64 ? DType::kF64 : DType::kF32;
  r.trans_a = p.trans_b;
  r.trans_b = p.trans_a;
  const auto matrix = [&](DType dtype, int64_t rows, int64_t columns, int64_t stride) {
    return LtMatrix{dtype, rows, columns, rows, p.batches, stride};
  };
  r.a = matrix(p.ab, p.ldb(), p.trans_b ? p.n : p.k, p.stride_b);
  r.b = matrix(p.ab, p.lda(), p.trans_a ? p.k : p.m, p.stride_a);
  r.d = matrix(p.d, p.ldd(), p.m, p.stride_d);
  r.has_bias = p.has_bias;
  r.epilogue = p.epilogue == Epilogue::kSumsOfA   ? Epilogue::kSumsOfB
               : p.epilogue == Epilogue::kSumsOfB ? Epilogue::kSumsOfA
                                                  : p.epilogue;
  r.has_sums = p.has_sums || sums_operand(p.epilogue);
  if (p.has_aux || is_gradient(p.epilogue)) {
    r.aux = has_bits(p.epilogue) ? DType::kU8 : p.d;
    r.aux_leading = p.ld_aux();
    r.aux_stride = p.batches > 1 ? p.ld_aux() * p.m : 0;
  }
  r.tf32 = p.tf32;
  r.alignment = common_alignment(operands);
  return r;
}

LtRequest least_request(const MatmulProblem& p, uint32_t alignment) {
  LtRequest r = lt_request(p, {});
  const auto elements = static_cast<uint32_t>(std::min(size_of(p.ab), size_of(p.d)));
  r.alignment = std::max(alignment, elements);
  return r;
}

LeastOperands least_operands(const LtRequest& request) {
  const auto at = [&](int place, uintptr_t least) {
    return reinterpret_cast<void*>(uintptr_t{1} << place |
                                   std::max<uintptr_t>(request.alignment, least));
  };
  const uintptr_t element = size_of(request.d.dtype);
  LeastOperands operands;
  if (request.has_bias) operands.bias = at(20, element);
  if (request.aux != DType::kUndefined) operands.aux = at(21, kLtAuxAlignment);
  if (request.has_sums) operands.sums = at(22, element);
  return operands;
}

int64_t elements_of_sums(const LtRequest& request) {
  return request.epilogue == Epilogue::kSumsOfB ? request.d.columns : request.d.rows;
}

LtOperands lt_operands(const MatmulOperands& operands) {
  const auto room = reinterpret_cast<uintptr_t>(operands.workspace);
  const uintptr_t aligned =
      (room + kLtWorkspaceAlignment - 1) / kLtWorkspaceAlignment * kLtWorkspaceAlignment;
  return {operands.b,    operands.a,   operands.d,   reinterpret_cast<void*>(aligned),
          operands.bias, operands.aux, operands.sums};
}

std::string illegal_request(const LtRequest& r, const LtOperands& operands) {
  if (!types_are_supported(r)) {
    return "types that do not go together: " + std::string(short_name(r.a.dtype)) + " and " +
           std::string(short_name(r.b.dtype)) + " to " + std::string(short_name(r.d.dtype)) +
           " in " + std::string(short_name(r.compute));
  }
  for (const auto& [matrix, name] :
       {std::pair(r.a, "A"), std::pair(r.b, "B"), std::pair(r.d, "D")}) {
    if (std::string why = illegal_matrix(matrix, name); !why.empty()) return why;
  }
  if (r.a.batches != r.d.batches || r.b.batches != r.d.batches) return "unequal numbers of batches";
  const int64_t m = r.trans_a ? r.a.columns : r.a.rows, k = r.trans_a ? r.a.rows : r.a.columns;
  const int64_t from = r.trans_b ? r.b.columns : r.b.rows, n = r.trans_b ? r.b.rows : r.b.columns;
  if (from != k || r.d.rows != m || r.d.columns != n) return "extents that do not fit each other";
  if (r.d.batches > 1 && r.d.stride < (r.d.columns - 1) * r.d.leading + r.d.rows)
    return "results that overlap each other";
  if (!std::has_single_bit(r.alignment) || r.alignment > kMostAlignment)
    return "no alignment that can be promised";
  struct Address {
    const void* at;
    const LtMatrix& matrix;
    const char* name;
  };
  for (const Address& address : {Address{operands.a, r.a, "A"}, Address{operands.b, r.b, "B"},
                                 Address{operands.d, r.d, "D"}}) {
    std::string why = illegal_address(address.at, address.matrix, r.alignment, address.name);
    if (!why.empty()) return why;
  }
  if (overlap(operands.d, r.d, operands.a, r.a) || overlap(operands.d, r.d, operands.b, r.b))
    return "a result over an operand";
  if (r.has_bias) {
    if (r.d.batches != 1 || r.d.dtype == DType::kF64) return "a bias of a stack, or in f64";
    const LtMatrix vector{r.d.dtype, r.d.rows, 1, r.d.rows};
    std::string why = illegal_address(operands.bias, vector, r.alignment, "the bias");
    if (why.empty() && overlap(operands.d, r.d, operands.bias, vector))
      why = "a result over an operand";
    if (!why.empty()) return why;
  }
  if (std::string why = illegal_epilogue(r, operands); !why.empty()) return why;
  const auto workspace = reinterpret_cast<uintptr_t>(operands.workspace);
  if (workspace == 0) return "no workspace";
  return workspace % kLtWorkspaceAlignment == 0 ? "" : "a workspace that is not aligned";
}

}  // namespace halfnote::libraries
