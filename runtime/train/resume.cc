#include "runtime/train/resume.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/system/hash.h"
#include "compiler/onnx/export.h"

namespace halfnote {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const RunIdentity& identity, const RunPosition& position) {
  return {{"artifact", identity.artifact},   {"data", identity.data},
          {"samples", identity.samples},     {"batch", identity.batch},
          {"seed", identity.seed},           {"shuffle", identity.shuffle},
          {"step", position.step},           {"pending", position.pending},
          {"epoch", position.data.epoch},    {"sample", position.data.sample},
          {"skipped", position.skipped},     {"stuck", position.stuck},
          {"correct", position.correct},     {"labels", position.labels},
          {"evaluated", position.evaluated}, {"arithmetic", identity.arithmetic},
          {"diverged", position.diverged}};
}

/// Reads the JSON of a checkpoint, all of whose members must be there.
class Extra {
 public:
  Extra(const std::string& text, std::string path)
      : json_(nlohmann::json::parse(text, nullptr, false)), path_(std::move(path)) {
    if (!json_.is_object()) throw damaged("extra", "an object");
  }

  std::string string(const char* name) const {
    const auto& value = member(name);
    if (!value.is_string()) throw damaged(name, "a string");
    return value.get<std::string>();
  }
  int64_t integer(const char* name) const {
    const auto& value = member(name);
    if (!value.is_number_integer()) throw damaged(name, "an integer");
    return value.get<int64_t>();
  }
  /// A switch that checkpoints of older versions lack.
  bool flag(const char* name, bool otherwise) const {
    if (!json_.contains(name)) return otherwise;
    if (!json_[name].is_boolean()) throw damaged(name, "true or false");
    return json_[name].get<bool>();
  }
  uint64_t unsigned_integer(const char* name) const {
    const auto& value = member(name);
    if (!value.is_number_unsigned()) throw damaged(name, "an integer of 0 or more");
    return value.get<uint64_t>();
  }
  int64_t within(const char* name, int64_t low, int64_t high) const {
    const int64_t value = integer(name);
    if (value < low || value > high) {
      throw damaged(name, fmt::format("{} to {}", low, high).c_str());
    }
    return value;
  }

  Error damaged(const char* name, const char* expected) const {
    return Error(ErrorCode::kCheckpoint, fmt::format("the manifest's \"{}\" is wrong", name))
        .at({path_, {}, {}})
        .expected(expected, json_.is_object() && json_.contains(name) ? json_[name].dump()
                                                                      : std::string("nothing"));
  }

 private:
  const nlohmann::json& member(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) throw damaged(name, "a value");
    return *found;
  }

  nlohmann::json json_;
  std::string path_;
};

Error other_run(const std::string& path, const char* what, const std::string& saved,
                const std::string& given) {
  return Error(ErrorCode::kCheckpoint,
               fmt::format("the checkpoint is of a run with another {}", what))
      .at({path, {}, {}})
      .expected(saved, given)
      .hint(
          "resume with the artifact and the options of the run that was saved, or start a new one");
}

void check_identity(const Extra& extra, const RunIdentity& now, const std::string& path) {
  const auto check = [&](const char* what, const std::string& saved, const std::string& given) {
    if (saved != given) throw other_run(path, what, saved, given);
  };
  check("artifact", extra.string("artifact"), now.artifact);
  check("batch size", std::to_string(extra.integer("batch")), std::to_string(now.batch));
  check("seed", std::to_string(extra.unsigned_integer("seed")), std::to_string(now.seed));
  const auto order = [](bool shuffle) { return shuffle ? "shuffled" : "as in the data"; };
  check("order of samples", order(extra.flag("shuffle", true)), order(now.shuffle));
  check("number of samples", std::to_string(extra.integer("samples")), std::to_string(now.samples));
  check("kind of data", extra.string("data"), now.data);
}

RunPosition read_position(const Extra& extra, const Checkpoint& checkpoint, const Session& session,
                          const RunIdentity& identity) {
  constexpr int64_t kMost = int64_t{1} << 60;
  RunPosition position;
  position.step = extra.within("step", 0, kMost);
  position.pending = extra.within("pending", 0, session.accumulation() - 1);
  position.data.epoch = extra.within("epoch", 0, kMost);
  position.data.sample = extra.within("sample", 0, identity.samples);
  position.skipped = extra.within("skipped", 0, position.step);
  position.stuck = extra.within("stuck", 0, position.step);
  position.labels = extra.within("labels", 0, kMost);
  position.correct = extra.within("correct", 0, position.labels);
  position.evaluated = extra.within("evaluated", -1, position.step);
  position.diverged = extra.flag("diverged", false);
  if (position.step != checkpoint.step) {
    throw extra.damaged("step", std::to_string(checkpoint.step).c_str());
  }
  return position;
}

using TensorsByName = std::unordered_map<std::string_view, const Tensor*>;

/// Checkpoint::find() goes through all tensors, of which a model may have 100,000.
TensorsByName by_name(const Checkpoint& checkpoint) {
  TensorsByName tensors;
  for (const NamedTensor& tensor : checkpoint.tensors) tensors.emplace(tensor.name, &tensor.tensor);
  return tensors;
}

void check_states(const StateStore& store, const Checkpoint& checkpoint,
                  const TensorsByName& tensors, const std::string& path) {
  for (const StateEntry& entry : store.entries()) {
    const auto found = tensors.find(entry.name);
    const Tensor* tensor = found == tensors.end() ? nullptr : found->second;
    const bool fits =
        tensor != nullptr && tensor->dtype() == entry.dtype && tensor->shape() == entry.shape;
    if (fits) continue;
    throw Error(ErrorCode::kCheckpoint, fmt::format("state \"{}\" does not fit", entry.name))
        .at({path, {}, {}})
        .expected(fmt::format("{}{}", short_name(entry.dtype), to_string(entry.shape)),
                  tensor == nullptr ? std::string("no such tensor")
                                    : fmt::format("{}{}", short_name(tensor->dtype()),
                                                  to_string(tensor->shape())));
  }
  if (checkpoint.tensors.size() == store.entries().size()) return;
  for (const NamedTensor& tensor : checkpoint.tensors) {
    if (store.find(tensor.name) != nullptr) continue;
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the artifact has no state \"{}\"", tensor.name))
        .at({path, {}, {}});
  }
}

}  // namespace

std::string artifact_hash(const std::filesystem::path& file) {
  std::string hash = file_hash(file);
  const std::filesystem::path external = file.string() + ".data";
  std::error_code error;
  if (std::filesystem::is_regular_file(external, error)) hash += "+" + file_hash(external);
  return hash;
}

std::string artifact_hash(const Model& model) { return content_hash(export_model_bytes(model)); }

Checkpoint make_checkpoint(const Session& session, const RunIdentity& identity,
                           const RunPosition& position) {
  Checkpoint checkpoint;
  checkpoint.step = position.step;
  const StateStore& store = session.state();
  for (const StateEntry& entry : store.entries()) {
    checkpoint.tensors.push_back({entry.name, store.view(entry)});
  }
  checkpoint.extra = to_json(identity, position).dump();
  return checkpoint;
}

std::string arithmetic_warning(const Checkpoint& checkpoint, const RunIdentity& identity) {
  const auto json = nlohmann::json::parse(checkpoint.extra, nullptr, false);
  const std::string saved =
      json.is_object() && json.contains("arithmetic") && json["arithmetic"].is_string()
          ? json["arithmetic"].get<std::string>()
          : "unknown";
  if (saved == identity.arithmetic) return {};
  return fmt::format(
      "the checkpoint was made with {}, now there are {}: the run goes on, but not "
      "bit for bit as if it had never stopped",
      saved, identity.arithmetic);
}

RunPosition restore_checkpoint(Session& session, const Checkpoint& checkpoint,
                               const RunIdentity& identity, const std::string& path) {
  const Extra extra(checkpoint.extra, path);
  check_identity(extra, identity, path);
  const RunPosition position = read_position(extra, checkpoint, session, identity);
  const TensorsByName tensors = by_name(checkpoint);
  check_states(session.state(), checkpoint, tensors, path);
  for (const StateEntry& entry : session.state().entries()) {
    session.state().set(entry, *tensors.at(entry.name));
  }
  session.set_pending(position.pending);
  return position;
}

}  // namespace halfnote
