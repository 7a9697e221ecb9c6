// A flatbuffer is a tree of tables. A table begins with the distance back to its vtable, which
// holds a 16-bit offset per field (0: absent); vectors and strings are reached by 32-bit offsets
// and begin with their length. Nothing is trusted: a position is checked where it is read.
#include "compiler/onnx/ort_checkpoint.h"

#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/text/printable.h"

namespace halfnote {
namespace {

constexpr uint64_t kMaxTensors = 1'000'000;
constexpr size_t kMaxRank = 64;
constexpr size_t kShownName = 100;  // bytes of a name in a message

// The places of fields in vtables, by ONNX Runtime's ort.fbs and training schema.
constexpr uint64_t kModuleState = 6, kOptimizerGroups = 8;
constexpr uint64_t kTrained = 4, kFrozen = 6, kNominal = 8, kExternal = 10;
constexpr uint64_t kName = 4, kDims = 8, kDataType = 10, kRawData = 12;
constexpr uint64_t kStep = 6;

class FlatBuffer {
 public:
  explicit FlatBuffer(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T read(uint64_t at) const {
    const auto piece = bytes(at, sizeof(T));
    T value;
    std::memcpy(&value, piece.data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> bytes(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) {
      throw Error(ErrorCode::kModel, "the checkpoint is damaged: an offset leads out of the file")
          .expected("at most " + std::to_string(bytes_.size()) + " bytes",
                    std::to_string(at) + " + " + std::to_string(size));
    }
    return bytes_.subspan(at, size);
  }

  /// Where the offset at `at` leads.
  uint64_t follow(uint64_t at) const { return at + read<uint32_t>(at); }
  uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

/// The elements of a vector: `count` of them from `begin` on.
struct FlatVector {
  uint64_t begin = 0, count = 0;
};

class FlatTable {
 public:
  FlatTable(const FlatBuffer& buffer, uint64_t at) : buffer_(buffer), at_(at) {
    const int64_t vtable = static_cast<int64_t>(at) - buffer.read<int32_t>(at);
    if (vtable < 0)
      throw Error(ErrorCode::kModel, "the checkpoint is damaged: a table has no form");
    vtable_ = static_cast<uint64_t>(vtable);
  }

  std::optional<uint64_t> field(uint64_t slot) const {
    const uint64_t size = buffer_.read<uint16_t>(vtable_);
    if (slot + 2 > size) return std::nullopt;
    const uint64_t offset = buffer_.read<uint16_t>(vtable_ + slot);
    if (offset == 0) return std::nullopt;
    return at_ + offset;
  }

  template <class T>
  T scalar(uint64_t slot) const {
    const auto at = field(slot);
    return at ? buffer_.read<T>(*at) : T{};
  }

  std::optional<FlatTable> table(uint64_t slot) const {
    const auto at = field(slot);
    if (!at) return std::nullopt;
    return FlatTable(buffer_, buffer_.follow(*at));
  }

  FlatVector vector(uint64_t slot, uint64_t element_size) const {
    const auto at = field(slot);
    if (!at) return {};
    const uint64_t begin = buffer_.follow(*at);
    const uint64_t count = buffer_.read<uint32_t>(begin);
    buffer_.bytes(begin + 4, count * element_size);  // 32 bits times 8 at most: no overflow
    return {begin + 4, count};
  }

  std::string text(uint64_t slot) const {
    const FlatVector chars = vector(slot, 1);
    const auto bytes = buffer_.bytes(chars.begin, chars.count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::vector<FlatTable> tables(uint64_t slot) const {
    const FlatVector offsets = vector(slot, 4);
    if (offsets.count > kMaxTensors) {
      throw Error(ErrorCode::kModel, "the checkpoint has too many tensors")
          .expected("at most " + std::to_string(kMaxTensors), std::to_string(offsets.count));
    }
    std::vector<FlatTable> result;
    for (uint64_t i = 0; i < offsets.count; ++i) {
      result.emplace_back(buffer_, buffer_.follow(offsets.begin + 4 * i));
    }
    return result;
  }

  const FlatBuffer& buffer() const { return buffer_; }

 private:
  const FlatBuffer& buffer_;
  uint64_t at_, vtable_ = 0;
};

Tensor tensor_of(const FlatTable& table, const std::string& name) {
  const Place place{{}, printable(name), {}};
  const int32_t code = table.scalar<int32_t>(kDataType);
  const auto dtype = dtype_from_onnx(code);
  if (!dtype || !is_float(*dtype)) {
    throw Error(ErrorCode::kUnsupported, "a parameter of the checkpoint is no float tensor")
        .at(place)
        .expected("a float type of ONNX", std::to_string(code));
  }
  const FlatVector dims = table.vector(kDims, sizeof(int64_t));
  if (dims.count > kMaxRank) {
    throw Error(ErrorCode::kModel, "the checkpoint is damaged: a tensor has too many dims")
        .at(place)
        .expected("at most " + std::to_string(kMaxRank), std::to_string(dims.count));
  }
  Shape shape;
  for (uint64_t i = 0; i < dims.count; ++i) {
    shape.push_back(table.buffer().read<int64_t>(dims.begin + 8 * i));
    if (shape.back() < 0) {
      throw Error(ErrorCode::kModel, "the checkpoint is damaged: a dim is negative")
          .at(place)
          .expected("0 or more", std::to_string(shape.back()));
    }
  }
  const FlatVector data = table.vector(kRawData, 1);
  const uint64_t wanted = static_cast<uint64_t>(
      checked_mul(element_count(shape), static_cast<int64_t>(size_of(*dtype))));
  if (data.count != wanted) {
    throw Error(ErrorCode::kModel,
                "the checkpoint is damaged: a tensor has not the size of its shape")
        .at(place)
        .expected(std::to_string(wanted) + " bytes", std::to_string(data.count));
  }
  Tensor tensor(*dtype, std::move(shape));
  const auto bytes = table.buffer().bytes(data.begin, data.count);
  if (!bytes.empty()) std::memcpy(tensor.mutable_bytes(), bytes.data(), bytes.size());
  return tensor;
}

OrtCheckpoint read(const FlatBuffer& buffer) {
  const auto mark = buffer.bytes(4, 4);
  const std::string_view id(reinterpret_cast<const char*>(mark.data()), mark.size());
  if (id != "ODTC") {
    throw Error(ErrorCode::kModel, "the file is no checkpoint of ONNX Runtime's training")
        .expected("the identifier ODTC at byte 4", "\"" + printable(std::string(id)) + "\"")
        .hint(
            "checkpoints of onnxruntime-training before 1.15 are folders: write it again with "
            "1.19.2");
  }
  const FlatTable root(buffer, buffer.follow(0));
  const auto state = root.table(kModuleState);
  if (!state) throw Error(ErrorCode::kModel, "the checkpoint holds no parameters");
  if (state->scalar<uint8_t>(kNominal) != 0) {
    throw Error(ErrorCode::kUnsupported, "the checkpoint is nominal: it has no parameter data")
        .hint("generate the artifacts with nominal_checkpoint=False");
  }
  if (state->scalar<uint8_t>(kExternal) != 0) {
    throw Error(ErrorCode::kUnsupported, "the checkpoint keeps its data in a second file")
        .hint("save it without external data (parameters below 2 GB)");
  }
  OrtCheckpoint result;
  std::set<std::string> names;
  uint64_t total = 0;  // tensors and names may share bytes in a hostile file
  for (const auto& [slot, trained] : {std::pair{kTrained, true}, std::pair{kFrozen, false}}) {
    for (const FlatTable& table : state->tables(slot)) {
      OrtParameter parameter{table.text(kName), {}, trained};
      parameter.tensor = tensor_of(table, parameter.name.substr(0, kShownName));
      total += parameter.tensor.byte_size() + parameter.name.size();
      if (total > buffer.size() || !names.insert(parameter.name).second) {
        throw Error(ErrorCode::kModel, "the checkpoint is damaged: tensors share bytes or a name")
            .at({{}, printable(parameter.name.substr(0, kShownName)), {}});
      }
      result.parameters.push_back(std::move(parameter));
    }
  }
  for (const FlatTable& group : root.tables(kOptimizerGroups)) {
    result.step = std::max(result.step, group.scalar<int64_t>(kStep));
  }
  return result;
}

}  // namespace

OrtCheckpoint read_ort_checkpoint(const std::filesystem::path& path) {
  const MappedFile file(path);
  try {
    return read(FlatBuffer(file.bytes()));
  } catch (Error& error) {
    throw error.within({.file = path.string()});
  }
}

}  // namespace halfnote
