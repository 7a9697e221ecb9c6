// Helpers of the import and export tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "tests/onnx/wire.h"

namespace halfnote {

/// The type of f32 tensors with these dims.
inline ValueType floats(std::initializer_list<Dim> dims) {
  return ValueType::tensor(DType::kF32, SymbolicShape(dims));
}

/// The name of a table test: that of its row.
inline constexpr auto row_name = [](const auto& row) -> std::string { return row.param.name; };

inline Model import_text_bytes(const std::string& bytes, const ImportOptions& options = {}) {
  return import_model_bytes(wire::as_bytes(bytes), "test.onnx", options);
}

/// The error that `action` throws; a failure if it throws none.
template <class Action>
Error error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an Error";
  return Error(ErrorCode::kInternal, "none was thrown");
}

inline Error import_error(const std::string& bytes, const ImportOptions& options = {}) {
  return error_of([&] { import_text_bytes(bytes, options); });
}

/// A folder of its own for one test, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "halfnote_test.XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

/// The only node of the main region with this op.
inline NodeId find_op(const Graph& graph, std::string_view op) {
  for (NodeId id : graph.all_nodes()) {
    if (graph.node(id).op == op) return id;
  }
  ADD_FAILURE() << "no node " << op;
  return {};
}

/// Written, read and written again: the bytes must be the same. Returns the model that was read.
inline Model round_trip(const Model& model) {
  const auto first = export_model_bytes(model);
  Model read = import_model_bytes(first, "round_trip.onnx");
  EXPECT_EQ(first, export_model_bytes(read)) << "the second export differs";
  return read;
}

inline std::vector<std::string> names_of(const Graph& graph, std::span<const ValueId> values) {
  std::vector<std::string> names;
  for (ValueId value : values) names.push_back(value.valid() ? graph.value(value).name : "");
  return names;
}

}  // namespace halfnote
