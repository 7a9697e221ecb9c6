// Tokens for splicing, places in the external file, or plain bytes for the checker.
#include "compiler/onnx/write/sink.h"

#include <onnx/onnx_pb.h>

#include <array>

#include "compiler/onnx/proto/tensor.h"

namespace halfnote::proto {
namespace {

// Large tensors start on a page, so that they can be mapped on their own; all others on a cache
// line.
constexpr uint64_t kPage = 4096, kCacheLine = 64, kLarge = uint64_t{1} << 20;
constexpr std::array<std::byte, kPage> kZeros{};

constexpr size_t kCheckedBytes = 4096;
// Smaller tensors are copied into the message: splicing walks through all of it, and a graph with
// nothing else needs no splicing.
constexpr size_t kInline = 1024;

void add_entry(onnx::TensorProto& to, const char* key, std::string value) {
  auto* entry = to.add_external_data();
  entry->set_key(key);
  entry->set_value(std::move(value));
}

}  // namespace

std::span<const std::byte> SpliceSink::bytes_of(const Tensor& tensor) {
  if (is_raw_in_memory(tensor.dtype())) return {tensor.bytes(), tensor.byte_size()};
  packed_.push_back(pack_bits(tensor));
  return std::as_bytes(std::span(packed_.back()));
}

void SpliceSink::write(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) {
  if (tensor.dtype() == DType::kString) {
    write_tensor(tensor, name, to);
    return;
  }
  write_tensor_header(tensor, name, to);
  const auto bytes = bytes_of(tensor);
  if (bytes.size() <= kInline && bytes.size() != kSpliceToken) {
    to.set_raw_data(bytes.data(), bytes.size());
    return;
  }
  to.set_raw_data(encode_splice({parts_.size(), bytes.size()}));
  parts_.push_back(bytes);
}

bool SpliceSink::write_initializer(const Tensor& tensor, const std::string& name,
                                   onnx::TensorProto& to) {
  const bool outside = !location_.empty() && tensor.dtype() != DType::kString &&
                       raw_size(tensor.dtype(), tensor.size()) >= threshold_;
  if (!outside) {
    write(tensor, name, to);
    return true;
  }
  const auto bytes = bytes_of(tensor);
  const uint64_t unit = bytes.size() >= kLarge ? kPage : kCacheLine;
  const uint64_t padding = (unit - external_size_ % unit) % unit;
  if (padding > 0) external_.push_back(std::span(kZeros).first(padding));
  external_.push_back(bytes);
  write_tensor_header(tensor, name, to);
  to.set_data_location(onnx::TensorProto::EXTERNAL);
  add_entry(to, "location", location_);
  add_entry(to, "offset", std::to_string(external_size_ + padding));
  add_entry(to, "length", std::to_string(bytes.size()));
  external_size_ += padding + bytes.size();
  return true;
}

void CheckSink::write(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) {
  write_tensor(tensor, name, to);
}

bool CheckSink::write_initializer(const Tensor& tensor, const std::string& name,
                                  onnx::TensorProto& to) {
  if (tensor.byte_size() > kCheckedBytes) return false;
  write_tensor(tensor, name, to);
  return true;
}

}  // namespace halfnote::proto
