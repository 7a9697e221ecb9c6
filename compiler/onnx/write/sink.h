// Where the bytes of tensors go when a model is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/onnx/proto/wire.h"

namespace onnx {
class TensorProto;
}  // namespace onnx

namespace halfnote::proto {

class TensorSink {
 public:
  virtual ~TensorSink() = default;
  /// A tensor that must stand in the model itself (an attribute, an initializer of a subgraph).
  virtual void write(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) = 0;
  /// An initializer of a main graph; false: leave it out, it becomes an input.
  virtual bool write_initializer(const Tensor& tensor, const std::string& name,
                                 onnx::TensorProto& to) {
    write(tensor, name, to);
    return true;
  }
  /// Is the proto for the checker alone? It needs no metadata of nodes and no data.
  virtual bool is_check() const { return false; }
};

/// Leaves a token in the proto for all but small tensors and remembers the bytes, which are spliced
/// in when the file is written. Initializers may go to an external file.
class SpliceSink : public TensorSink {
 public:
  /// `location` is the external file's name; empty: no external file.
  explicit SpliceSink(std::string location = {}, uint64_t threshold = 0)
      : location_(std::move(location)), threshold_(threshold) {}

  void write(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) override;
  bool write_initializer(const Tensor& tensor, const std::string& name,
                         onnx::TensorProto& to) override;
  std::span<const std::byte> lookup(RawToken token) const { return parts_[token.place]; }
  /// Did it leave any token?
  bool has_tokens() const { return !parts_.empty(); }
  /// The content of the external file.
  const std::vector<std::span<const std::byte>>& external() const { return external_; }

 private:
  std::span<const std::byte> bytes_of(const Tensor& tensor);

  std::string location_;
  uint64_t threshold_;
  std::vector<std::span<const std::byte>> parts_, external_;
  uint64_t external_size_ = 0;
  std::deque<std::string> packed_;  // bytes that no tensor holds in this form
};

/// For checking: small tensors as they are, large initializers as inputs.
class CheckSink : public TensorSink {
 public:
  void write(const Tensor& tensor, const std::string& name, onnx::TensorProto& to) override;
  bool write_initializer(const Tensor& tensor, const std::string& name,
                         onnx::TensorProto& to) override;
  bool is_check() const override { return true; }
};

}  // namespace halfnote::proto
