#include "kernels/cuda/libraries/dnn_request.h"

#include <algorithm>
#include <limits>

namespace halfnote::libraries {

namespace {

/// The dims in use: the library wants two at least.
size_t first_dim(const cpu::ConvPlan& plan) { return plan.spatial == 3 ? 0 : 1; }

Shape spatial(const cpu::ConvPlan& plan, const cpu::ConvPlan::Dims& dims) {
  return Shape(dims.begin() + static_cast<std::ptrdiff_t>(first_dim(plan)), dims.end());
}

Shape packed_strides(const Shape& dims, ConvLayout layout) {
  Shape strides(dims.size(), 1);
  int64_t step = layout == ConvLayout::kChannelsLast ? dims[1] : 1;
  for (size_t d = dims.size(); d-- > 2;) {
    strides[d] = step;
    step *= dims[d];
  }
  if (layout == ConvLayout::kPlain) {
    strides[1] = step;
    step *= dims[1];
  }
  strides[0] = step;
  return strides;
}

DnnTensor packed(int64_t id, const ConvProblem& problem, ConvResult tensor, Shape dims,
                 const Shape& inner) {
  dims.insert(dims.end(), inner.begin(), inner.end());
  const Shape strides = packed_strides(dims, problem.layout);
  return {id, problem.type_of(tensor), std::move(dims), strides};
}

std::string illegal_tensor(const DnnTensor& t, const std::string& name) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::string of = " of " + name;
  if (t.dims.size() < 4 || t.dims.size() > 5) return "neither two nor three spatial dims" + of;
  int64_t count = 1;
  for (const int64_t dim : t.dims) {
    if (dim <= 0) return "no elements" + of;
    if (dim > kMost / count) return "too many elements" + of;
    count *= dim;
  }
  return {};
}

std::string illegal_bias(const DnnRequest& r) {
  if (!r.has_bias()) return {};
  if (r.wanted == ConvResult::kW) return "a bias of weights";
  if (r.bias.dtype != r.result().dtype || r.w.dtype != r.result().dtype)
    return "a bias of another type";
  Shape line(r.result().dims.size(), 1);
  line[1] = r.result().dims[1];
  if (r.bias.dims != line) return "not one number of a bias for each channel";
  const bool known = r.bias.id == r.x.id || r.bias.id == r.w.id || r.bias.id == r.y.id;
  return known ? "two tensors of one id" : "";
}

bool is_packed(const DnnRequest& r, ConvLayout layout) {
  for (const DnnTensor* t : {&r.x, &r.w, &r.y}) {
    if (t->strides != packed_strides(t->dims, layout)) return false;
  }
  return true;
}

std::string illegal_types(const DnnRequest& r) {
  const auto& [result, one, two] =
      r.wanted == ConvResult::kY   ? std::tie(r.y.dtype, r.x.dtype, r.w.dtype)
      : r.wanted == ConvResult::kX ? std::tie(r.x.dtype, r.y.dtype, r.w.dtype)
                                   : std::tie(r.w.dtype, r.x.dtype, r.y.dtype);
  const bool known = one == DType::kF32 || is_16bit_float(one);
  const bool wide = result == DType::kF32 && r.wanted == ConvResult::kY;
  const bool fits = one == two && (result == one || wide);
  if (known && fits && r.compute == DType::kF32) return {};
  return "types that do not go together: " + std::string(short_name(one)) + " and " +
         std::string(short_name(two)) + " to " + std::string(short_name(result)) + " in " +
         std::string(short_name(r.compute));
}

/// Along spatial dim d: the kernel, and as many outputs as fit.
bool extents_fit(const DnnRequest& r, size_t d) {
  const int64_t reach = (r.w.dims[2 + d] - 1) * r.dilation[d] + 1;
  const int64_t room = r.x.dims[2 + d] + r.pad_begin[d] + r.pad_end[d] - reach;
  return room >= 0 && r.y.dims[2 + d] == room / r.stride[d] + 1;
}

struct Address {
  const void* at;
  const DnnTensor& tensor;
  const char* name;

  uintptr_t first() const { return reinterpret_cast<uintptr_t>(at); }
  uintptr_t behind() const {
    return first() + static_cast<size_t>(element_count(tensor.dims)) * size_of(tensor.dtype);
  }
  bool overlaps(const Address& other) const {
    return first() < other.behind() && other.first() < behind();
  }
};

}  // namespace

DnnRequest dnn_request(const ConvProblem& problem) {
  const cpu::ConvPlan& p = problem.plan;
  DnnRequest r;
  r.wanted = problem.wanted;
  r.compute = DType::kF32;
  r.x = packed('x', problem, ConvResult::kX, {p.batch, p.channels}, spatial(p, p.in));
  r.w = packed('w', problem, ConvResult::kW, {p.filters, p.group_channels()}, spatial(p, p.kernel));
  r.y = packed('y', problem, ConvResult::kY, {p.batch, p.filters}, spatial(p, p.out));
  r.stride = spatial(p, p.stride);
  r.dilation = spatial(p, p.dilation);
  r.pad_begin = spatial(p, p.pad_begin);
  r.pad_end = spatial(p, p.pad_end);
  r.tensor_cores = is_16bit_float(problem.operands) || problem.tf32;
  if (problem.has_bias()) {
    Shape line(r.result().dims.size(), 1);
    line[1] = r.result().dims[1];
    r.bias = {'b', problem.bias, line, packed_strides(line, problem.layout)};
  }
  return r;
}

std::string illegal_request(const DnnRequest& r) {
  if (std::string why = illegal_types(r); !why.empty()) return why;
  if (std::string why = illegal_tensor(r.x, "x"); !why.empty()) return why;
  if (std::string why = illegal_tensor(r.w, "w"); !why.empty()) return why;
  if (std::string why = illegal_tensor(r.y, "y"); !why.empty()) return why;
  if (!is_packed(r, ConvLayout::kChannelsLast) && !is_packed(r, ConvLayout::kPlain))
    return "strides of no packed layout";
  if (r.x.id == r.w.id || r.x.id == r.y.id || r.w.id == r.y.id) return "two tensors of one id";
  const size_t count = r.x.dims.size() - 2;
  if (r.w.dims.size() != count + 2 || r.y.dims.size() != count + 2) return "different ranks";
  for (const Shape* numbers : {&r.stride, &r.dilation, &r.pad_begin, &r.pad_end}) {
    if (numbers->size() != count) return "not one number for each spatial dim";
    const int64_t least = numbers == &r.stride || numbers == &r.dilation ? 1 : 0;
    if (*std::min_element(numbers->begin(), numbers->end()) < least)
      return "a stride or dilation below 1, or a negative pad";
  }
  if (r.x.dims[0] != r.y.dims[0] || r.y.dims[1] != r.w.dims[0]) return "extents that do not fit";
  if (r.x.dims[1] % r.w.dims[1] != 0) return "channels that are no multiple of a group's";
  if (r.w.dims[0] % (r.x.dims[1] / r.w.dims[1]) != 0)
    return "filters that are no multiple of groups";
  for (size_t d = 0; d < count; ++d) {
    if (!extents_fit(r, d)) return "extents that do not fit";
  }
  return illegal_bias(r);
}

std::string illegal_operands(const DnnRequest& r, const ConvOperands& operands,
                             size_t workspace_bytes) {
  std::vector<Address> all = {
      {operands.x, r.x, "x"}, {operands.w, r.w, "w"}, {operands.y, r.y, "y"}};
  if (r.has_bias()) all.push_back({operands.bias, r.bias, "the bias"});
  for (const Address& address : all) {
    if (address.at == nullptr) return "no address of " + std::string(address.name);
    if (address.first() % kDnnAlignment != 0)
      return "an address not aligned as promised of " + std::string(address.name);
  }
  const size_t result = r.wanted == ConvResult::kX ? 0 : r.wanted == ConvResult::kW ? 1 : 2;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i != result && all[i].overlaps(all[result])) return "a result over an operand";
  }
  if (workspace_bytes == 0) return {};
  if (operands.workspace == nullptr) return "no workspace";
  return reinterpret_cast<uintptr_t>(operands.workspace) % kDnnWorkspaceAlignment == 0
             ? ""
             : "a workspace that is not aligned";
}

}  // namespace halfnote::libraries
