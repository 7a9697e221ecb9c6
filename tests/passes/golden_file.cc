#include "golden_file.h"

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "base/error.h"
#include "passes/precision/presets.h"

namespace halfnote::test {
namespace {

using Setter = std::function<void(CompileOptions&, const std::string&)>;

DType precision_from(const std::string& word) {
  if (word == "fp32") return DType::kF32;
  if (word == "fp16") return DType::kF16;
  if (word == "bf16") return DType::kBF16;
  throw Error(ErrorCode::kUsage, "no precision \"" + word + "\"");
}

bool on(const std::string& word) { return word == "on"; }

/// PATTERN:DECAY:LR_FACTOR, where a part may be empty.
ParameterGroup group_from(const std::string& word) {
  std::istringstream parts(word);
  ParameterGroup group;
  std::string decay, factor;
  std::getline(parts, group.pattern, ':');
  std::getline(parts, decay, ':');
  std::getline(parts, factor, ':');
  if (!decay.empty()) group.weight_decay = std::stof(decay);
  if (!factor.empty()) group.lr_factor = std::stof(factor);
  return group;
}

const std::map<std::string, Setter>& setters() {
  using O = CompileOptions;
  using S = std::string;
  static const std::map<std::string, Setter> kSetters = {
      {"precision", [](O& o, const S& v) { o.policy.dtype = precision_from(v); }},
      {"allow_op", [](O& o, const S& v) { o.policy.allow_ops.push_back(v); }},
      {"fp32_op", [](O& o, const S& v) { o.policy.fp32_ops.push_back(v); }},
      {"allow_node", [](O& o, const S& v) { o.policy.allow_nodes.push_back(v); }},
      {"fp32_node", [](O& o, const S& v) { o.policy.fp32_nodes.push_back(v); }},
      {"cost", [](O& o, const S& v) { o.policy.cost_refinement = on(v); }},
      {"pad", [](O& o, const S& v) { o.policy.pad = on(v); }},
      {"scaler", [](O& o, const S& v) { o.policy.scaler = scaler_preset(v); }},
      {"scale_init", [](O& o, const S& v) { o.policy.scaler.init = std::stof(v); }},
      {"scale_down", [](O& o, const S& v) { o.policy.scaler.down = std::stof(v); }},
      {"loss", [](O& o, const S& v) { o.train.loss = v; }},
      {"loss_output", [](O& o, const S& v) { o.train.loss_outputs.push_back(v); }},
      {"huber_delta", [](O& o, const S& v) { o.train.huber_delta = std::stof(v); }},
      {"label_smoothing", [](O& o, const S& v) { o.train.label_smoothing = std::stof(v); }},
      {"like", [](O& o, const S& v) { o.policy.like = v; }},
      {"centered", [](O& o, const S& v) { o.train.optimizer.centered = on(v); }},
      {"momentum", [](O& o, const S& v) { o.train.optimizer.momentum = std::stof(v); }},
      {"loss_input", [](O& o, const S& v) { o.train.loss_input = v; }},
      {"trainable", [](O& o, const S& v) { o.train.trainable.push_back(v); }},
      {"frozen", [](O& o, const S& v) { o.train.frozen.push_back(v); }},
      {"tied", [](O& o, const S& v) { o.train.tied.push_back(v); }},
      {"force_training", [](O& o, const S& v) { o.train.force_training = on(v); }},
      {"accumulation", [](O& o, const S& v) { o.train.accumulation = std::stoll(v); }},
      {"seed", [](O& o, const S& v) { o.train.seed = std::stoll(v); }},
      {"inference", [](O& o, const S& v) { o.inference_only = on(v); }},
      {"optimizer", [](O& o, const S& v) { o.train.optimizer.kind = v; }},
      {"lr", [](O& o, const S& v) { o.train.optimizer.lr = std::stof(v); }},
      {"decay", [](O& o, const S& v) { o.train.optimizer.weight_decay = std::stof(v); }},
      {"clip", [](O& o, const S& v) { o.train.optimizer.clip_norm = std::stof(v); }},
      {"no_decay_1d", [](O& o, const S& v) { o.train.optimizer.no_decay_on_1d = on(v); }},
      {"group", [](O& o, const S& v) { o.train.optimizer.groups.push_back(group_from(v)); }},
      {"schedule", [](O& o, const S& v) { o.train.optimizer.schedule.kind = v; }},
      {"warmup", [](O& o, const S& v) { o.train.optimizer.schedule.warmup = std::stoll(v); }},
      {"total", [](O& o, const S& v) { o.train.optimizer.schedule.total = std::stoll(v); }},
      {"step_size", [](O& o, const S& v) { o.train.optimizer.schedule.step_size = std::stoll(v); }},
  };
  return kSetters;
}

void set_option(CompileOptions& options, const std::string& word) {
  const size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (key.starts_with("dim.")) {
    options.dims[key.substr(4)] = std::stoll(value);
    return;
  }
  const auto found = setters().find(key);
  if (found == setters().end()) throw Error(ErrorCode::kUsage, "no option \"" + word + "\"");
  found->second(options, value);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Takes `key: rest` lines in front of the model's text.
bool take_directive(GoldenCase& golden, const std::string& line) {
  const auto rest = [&](std::string_view key) { return line.substr(key.size()); };
  if (line.starts_with("options: ")) {
    golden.options_text = rest("options: ");
    for (const std::string& word : words_of(golden.options_text)) set_option(golden.options, word);
  } else if (line.starts_with("before: ")) {
    golden.before_text = rest("before: ");
    golden.before = words_of(golden.before_text);
  } else if (line.starts_with("show: ")) {
    golden.show = rest("show: ");
  } else if (line.starts_with("run: no, ")) {
    golden.no_run = rest("run: no, ");
  } else {
    return false;
  }
  return true;
}

void trim_end(std::string& text) {
  while (text.ends_with("\n\n")) text.pop_back();
}

}  // namespace

GoldenFile read_golden(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw Error(ErrorCode::kIo, "no golden file " + path);
  GoldenFile file{path, "", {}};
  enum class Part { kHead, kDirectives, kText, kExpected } part = Part::kHead;
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.starts_with("### ")) {
      file.cases.emplace_back().title = line.substr(4);
      file.cases.back().line = number;
      part = Part::kDirectives;
      continue;
    }
    if (part == Part::kHead) {
      file.head += line + "\n";
      continue;
    }
    GoldenCase& golden = file.cases.back();
    if (part == Part::kDirectives && take_directive(golden, line)) continue;
    if (part == Part::kDirectives) part = Part::kText;
    if (part == Part::kText && line == "---") {
      part = Part::kExpected;
      continue;
    }
    (part == Part::kText ? golden.text : golden.expected) += line + "\n";
  }
  for (GoldenCase& golden : file.cases) trim_end(golden.expected);
  return file;
}

void write_golden(const GoldenFile& file) {
  std::ofstream stream(file.path, std::ios::trunc);
  stream << file.head;
  for (size_t i = 0; i < file.cases.size(); ++i) {
    const GoldenCase& golden = file.cases[i];
    stream << "### " << golden.title << "\n";
    if (!golden.options_text.empty()) stream << "options: " << golden.options_text << "\n";
    if (!golden.before_text.empty()) stream << "before: " << golden.before_text << "\n";
    if (!golden.show.empty()) stream << "show: " << golden.show << "\n";
    if (!golden.no_run.empty()) stream << "run: no, " << golden.no_run << "\n";
    stream << golden.text << "---\n" << golden.expected;
    if (i + 1 < file.cases.size()) stream << "\n";
  }
}

}  // namespace halfnote::test
