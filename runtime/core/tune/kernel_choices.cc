#include "runtime/core/tune/kernel_choices.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/version.h"
#include "kernels/cpu/cpu_info.h"
#include "passes/nesting.h"

namespace halfnote {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlanFormat = "halfnote-plan";
constexpr int64_t kPlanVersion = 1;
constexpr int64_t kConstantElements = 16;  // larger ones are data, not sizes and axes
constexpr const char* kAgain =
    "measure again with --tune in another run folder, and name its plan.json with --plan";

std::string operand_text(const Operand& operand) {
  if (!operand.present()) return "-";
  std::string text = std::string(short_name(operand.dtype)) + to_string(operand.shape);
  if (operand.constant == nullptr || is_float(operand.dtype) || operand.size() > kConstantElements)
    return text;
  text += "={";
  for (int64_t i = 0; i < operand.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ",", operand.constant->at_as_int(i));
  return text + "}";
}

/// Numbers and words; a tensor or a graph in an attribute is told by its name alone.
std::string attribute_text(const Attribute& attribute) {
  if (const auto* number = std::get_if<int64_t>(&attribute)) return std::to_string(*number);
  if (const auto* real = std::get_if<float>(&attribute)) return fmt::format("{}", *real);
  if (const auto* word = std::get_if<std::string>(&attribute)) return *word;
  std::string text;
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute)) {
    for (const int64_t number : *numbers)
      text += fmt::format("{}{}", text.empty() ? "" : ",", number);
  }
  if (const auto* reals = std::get_if<std::vector<float>>(&attribute)) {
    for (const float real : *reals) text += fmt::format("{}{}", text.empty() ? "" : ",", real);
  }
  return "[" + text + "]";
}

[[noreturn]] void damaged_plan(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kData, "the plan file is damaged")
      .at({path, {}, {}})
      .expected("what --tune wrote", what);
}

/// Broken JSON may have been one.
[[noreturn]] void no_plan(const std::string& path, bool broken) {
  if (broken) damaged_plan(path, "broken JSON");
  throw Error(ErrorCode::kData, "the file is no plan file")
      .at({path, {}, {}})
      .expected("what --tune wrote", "something else");
}

[[noreturn]] void foreign_plan(const std::string& path, const std::string& expected,
                               const std::string& got) {
  throw Error(ErrorCode::kUsage, "the plan file was measured elsewhere")
      .at({path, {}, {}})
      .expected(expected, got)
      .hint(kAgain);
}

std::string plan_text(const Json& json, const char* name, const std::string& path) {
  if (!json.is_object() || !json.contains(name) || !json[name].is_string())
    damaged_plan(path, fmt::format("no text \"{}\"", name));
  return json[name].get<std::string>();
}

int64_t plan_number(const Json& json, const char* name, const std::string& path) {
  if (!json.is_object() || !json.contains(name) || !json[name].is_number_integer())
    damaged_plan(path, fmt::format("no number \"{}\"", name));
  return json[name].get<int64_t>();
}

void check_machine(const Json& json, const std::string& path, const TunedMachine& machine) {
  if (const int64_t version = plan_number(json, "version", path); version != kPlanVersion)
    foreign_plan(path, fmt::format("version {}", kPlanVersion), fmt::format("version {}", version));
  const std::pair<const char*, std::string> facts[] = {
      {"halfnote", kVersion}, {"device", machine.device}, {"library", machine.library}};
  for (const auto& [name, wanted] : facts) {
    if (const std::string found = plan_text(json, name, path); found != wanted)
      foreign_plan(path, fmt::format("{} {}", name, wanted), found);
  }
  if (const int64_t threads = plan_number(json, "threads", path); threads != machine.threads)
    foreign_plan(path, fmt::format("{} threads", machine.threads),
                 fmt::format("{} threads", threads));
}

/// Does the table have the row, with algorithms if the name has one?
bool is_kernel(const KernelTable& table, const CallKey& key, std::string_view name) {
  const size_t dot = key.op.rfind('.');
  const std::string_view op(key.op);
  const bool own = dot != std::string::npos;
  for (const KernelRow* row :
       table.rows_of(own ? op.substr(0, dot) : "", own ? op.substr(dot + 1) : op)) {
    if (row->name != MeasuredKernel::row(name)) continue;
    return MeasuredKernel::algorithm(name).empty() || row->algorithms != nullptr;
  }
  return false;
}

/// The entries of a list that may be left out.
Json list_of(const Json& json, const char* name, const std::string& path) {
  if (!json.contains(name)) return Json::array();
  if (!json[name].is_array()) damaged_plan(path, fmt::format("\"{}\" is no list", name));
  return json[name];
}

CallKey parse_key(const Json& entry, const std::string& path) {
  return {plan_text(entry, "op", path), plan_text(entry, "operands", path),
          plan_text(entry, "attributes", path)};
}

Json json_of(const CallKey& key) {
  return {{"op", key.op}, {"operands", key.operands}, {"attributes", key.attributes}};
}

MeasuredFusion parse_fusion(const Json& entry, const std::string& path) {
  if (!entry.contains("pays") || !entry["pays"].is_boolean())
    damaged_plan(path, "a fusion without \"pays\"");
  const auto time = [&](const char* name) {
    const bool there =
        entry.contains("ms") && entry["ms"].is_object() && entry["ms"].contains(name);
    if (!there || !entry["ms"][name].is_number()) damaged_plan(path, "a time that is no number");
    return entry["ms"][name].get<double>();
  };
  return {entry["pays"].get<bool>(), time("fused"), time("apart")};
}

}  // namespace

TunedMachine this_machine(int threads) {
  return {cpu::cpu_description(), cpu::onednn_version(), threads};
}

TunedMachine machine_of(const Device& device) { return {device.hardware(), device.libraries(), 1}; }

std::string MeasuredKernel::name(std::string_view row, std::string_view algorithm) {
  return algorithm.empty() ? std::string(row) : fmt::format("{} {}", row, algorithm);
}

std::string_view MeasuredKernel::algorithm(std::string_view name) {
  const size_t space = name.find(' ');
  return space == std::string_view::npos ? std::string_view() : name.substr(space + 1);
}

CallKey key_of(const KernelCall& call) {
  CallKey key;
  key.op = call.domain.empty() ? std::string(call.op) : fmt::format("{}.{}", call.domain, call.op);
  for (const Operand& input : call.inputs) key.operands += operand_text(input) + " ";
  key.operands += "->";
  for (const Operand& output : call.outputs) key.operands += " " + operand_text(output);
  if (call.tf32) key.attributes = "tf32";
  if (call.attributes == nullptr) return key;
  for (const auto& [name, value] : *call.attributes)
    key.attributes +=
        fmt::format("{}{}={}", key.attributes.empty() ? "" : " ", name, attribute_text(value));
  return key;
}

KernelChoices KernelChoices::parse(std::string_view text, const std::string& path,
                                   const TunedMachine& machine, const KernelTable& table) {
  const Json json =
      json_nests_deeper(text) ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("format") || json["format"] != kPlanFormat)
    no_plan(path, text.starts_with('{') && !json.is_object());
  if (const std::string key = repeated_json_key(text); !key.empty())
    damaged_plan(path, fmt::format("the key \"{}\" twice", key));
  check_machine(json, path, machine);
  if (!json.contains("kernels") || !json["kernels"].is_array()) damaged_plan(path, "no kernels");
  KernelChoices choices(machine);
  choices.path_ = path;
  for (const Json& entry : json["kernels"]) {
    const CallKey key = parse_key(entry, path);
    const std::string kernel = plan_text(entry, "kernel", path);
    if (!is_kernel(table, key, kernel))
      damaged_plan(path, fmt::format("no kernel {} of {}", kernel, key.op));
    std::vector<MeasuredKernel> measured = {{kernel, 0}};
    if (entry.contains("ms") && entry["ms"].is_object()) {
      for (const auto& [name, ms] : entry["ms"].items()) {
        if (!ms.is_number()) damaged_plan(path, "a time that is no number");
        if (name == kernel) measured[0].ms = ms.get<double>();
        if (name != kernel) measured.push_back({name, ms.get<double>()});
      }
    }
    if (choices.contains(key)) damaged_plan(path, fmt::format("a call of {} twice", key.op));
    choices.set(key, std::move(measured));
  }
  for (const Json& entry : list_of(json, "fusions", path))
    choices.set_fusion(parse_key(entry, path), parse_fusion(entry, path));
  for (const Json& entry : list_of(json, "unmeasured", path)) {
    const CallKey key = parse_key(entry, path);
    if (choices.contains(key)) damaged_plan(path, fmt::format("a call of {} twice", key.op));
    choices.set_unmeasured(key, plan_text(entry, "why", path));
  }
  return choices;
}

std::string KernelChoices::to_json() const {
  Json json = {{"format", kPlanFormat},       {"version", kPlanVersion},
               {"halfnote", kVersion},        {"device", machine_.device},
               {"library", machine_.library}, {"threads", machine_.threads}};
  Json& kernels = json["kernels"] = Json::array();
  for (const auto& [key, measured] : kernels_) {
    if (measured.empty()) continue;
    Json times = Json::object();
    for (const MeasuredKernel& one : measured) times[one.kernel] = one.ms;
    Json entry = json_of(key);
    entry["kernel"] = measured.front().kernel;
    entry["ms"] = std::move(times);
    kernels.push_back(std::move(entry));
  }
  for (const auto& [key, fusion] : fusions_) {
    Json entry = json_of(key);
    entry["pays"] = fusion.pays;
    entry["ms"] = {{"fused", fusion.fused_ms}, {"apart", fusion.apart_ms}};
    json["fusions"].push_back(std::move(entry));
  }
  for (const auto& [key, why] : unmeasured_) {
    Json entry = json_of(key);
    entry["why"] = why;
    json["unmeasured"].push_back(std::move(entry));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string KernelChoices::digest() const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ 0xffu) * 0x100000001b3u;  // no byte of a text
  };
  for (const auto& [key, measured] : kernels_) {
    if (measured.empty()) continue;
    for (const std::string* text : {&key.op, &key.operands, &key.attributes}) add(*text);
    add(measured.front().kernel);
  }
  for (const auto& [key, fusion] : fusions_) {
    if (!fusion.pays) continue;  // as where nothing was measured
    for (const std::string* text : {&key.op, &key.operands, &key.attributes}) add(*text);
    add("fused");
  }
  return fmt::format("{:016x}", hash);
}

std::string_view KernelChoices::find(const CallKey& key) {
  const auto found = kernels_.find(key);
  if (found == kernels_.end() || found->second.empty()) return {};
  used_.insert(key);
  return found->second.front().kernel;
}

const MeasuredFusion* KernelChoices::find_fusion(const CallKey& key) const {
  const auto found = fusions_.find(key);
  return found == fusions_.end() ? nullptr : &found->second;
}

size_t KernelChoices::size() const {
  size_t count = 0;
  for (const auto& [key, measured] : kernels_) count += !measured.empty();
  return count;
}

}  // namespace halfnote
