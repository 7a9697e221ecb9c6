// halfnote-collect-chains [--source FILE] [--architectures 90,80] [--precisions bf16] DIR…: the
// generated kernels of the steps of case folders (mixed as fp32, bf16 and fp16, or as named; with
// AdamW), each text once.
//
// --source writes them as one source file for the emulation, with what halfnote_cuda_test needs to
// call them; --architectures compiles them by NVRTC.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "case_run.h"
#include "kernels/cuda/libraries/chains.h"
#include "kernels/cuda/libraries/nvrtc.h"
#include "passes/policy_file.h"

namespace {

namespace fs = std::filesystem;
using namespace halfnote;

struct Collected {
  chain::Source source;
  chain::Chain chain;
  std::string first;  // the case and precision that asked for it
};
using Chains = std::map<std::string, Collected>;  // by name

/// Plans the step of a case on the emulated device; nothing runs.
void collect(const fs::path& folder, DType precision, Chains& chains) {
  cases::Case c = cases::read_case(folder);
  if (c.json.contains("refused")) return;
  c.session.device = "cuda-emulated";
  CompileOptions options = cases::options_of(c, precision);
  options.train.optimizer.kind = "adamw";
  Session session(compile_file(c.model, options).model, c.session);
  std::vector<Shape> shapes;
  for (const Tensor& input : cases::inputs_for(session, c)) shapes.push_back(input.shape());
  std::vector<chain::Chain> asked;
  cuda_emulated::record_chains(&asked);
  session.prepare(shapes);
  cuda_emulated::record_chains(nullptr);
  const std::string from = folder.filename().string() + " in " + std::string(short_name(precision));
  for (chain::Chain& one : asked) {
    chain::Source source = chain::source_of(one);
    const std::string name = source.name;
    chains.emplace(name, Collected{std::move(source), std::move(one), from});
  }
}

std::vector<fs::path> case_folders(const std::vector<std::string>& arguments) {
  std::vector<fs::path> folders;
  for (const fs::path argument : arguments) {
    if (fs::exists(argument / "case.json")) folders.push_back(argument);
    if (!fs::is_directory(argument)) continue;
    for (const auto& entry : fs::directory_iterator(argument)) {
      if (fs::exists(entry.path() / "case.json")) folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// As ModelChain (tests/cuda/chain/compiled.h) reads it: `f32:0 bf16:2`, with the Access behind
/// the type.
std::string inputs_text(const chain::Chain& chain) {
  std::string text;
  for (const chain::Input& input : chain.inputs) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", short_name(input.dtype),
                        static_cast<int>(input.access));
  }
  return text;
}

void write_source(const std::string& file, const Chains& chains) {
  std::string text, kernels, calls;
  for (const auto& [name, one] : chains) {
    text += fmt::format("// {}\n{}\n", one.first, one.source.text);
    kernels += fmt::format("    {{\"{0}\", generated::{0}_parts::{0}}},\n", name);
    calls += fmt::format("    {{\"{}\", \"{}\",\n     \"{}\", \"{}\", {}, {}}},\n", name, one.first,
                         to_text(one.chain.program), inputs_text(one.chain),
                         one.chain.outputs.size(), one.chain.even);
  }
  text += fmt::format(
      "#include \"tests/cuda/chain/compiled.h\"\n\n"
      "namespace halfnote::cuda_emulated {{\n"
      "const CompiledChain kModelKernels[] = {{\n{}}};\n"
      "const ModelChain kModelChains[] = {{\n{}}};\n"
      "const size_t kModelChainCount = std::size(kModelChains);\n"
      "}}  // namespace halfnote::cuda_emulated\n",
      kernels, calls);
  write_file_atomic(file, text);
}

/// Some texts as one, so that their headers are read once.
std::vector<chain::Source> joined(const Chains& chains) {
  constexpr size_t kTogether = 24;
  std::vector<chain::Source> sources;
  size_t count = 0;
  for (const auto& [name, one] : chains) {
    if (count++ % kTogether == 0) sources.push_back({"with_" + name, ""});
    sources.back().text += one.source.text;
  }
  return sources;
}

/// Throws for a text that is not accepted, and for a kernel that is not in the code.
void compile(const Chains& chains, const std::vector<int>& architectures) {
  const libraries::Nvrtc nvrtc;
  const std::vector<chain::Source> sources = joined(chains);
  for (const int architecture : architectures) {
    const auto begin = std::chrono::steady_clock::now();
    const auto made = libraries::compile_kernels(nvrtc, sources, architecture, {});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::string all;
    for (const std::string& image : made.images) all += image;
    for (const auto& [name, one] : chains) {
      if (all.find(name) != std::string::npos) continue;
      throw Error(ErrorCode::kInternal, "the code has no kernel " + name);
    }
    fmt::print("{}: {} kernels compiled in {:.1f} s\n", nvrtc.target_for(architecture),
               chains.size(), seconds.count());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"collects the generated kernels of case folders", "halfnote-collect-chains"};
  std::string source;
  std::vector<int> architectures;
  std::vector<std::string> arguments, precisions = {"fp32", "bf16", "fp16"};
  app.add_option("--source", source, "writes them for the emulation, into this file");
  app.add_option("--architectures", architectures, "compiles them by NVRTC: 80,90,100,120")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--precisions", precisions, "of the steps (default: fp32,bf16,fp16)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("DIR", arguments, "case folders, or folders of case folders")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    Chains chains;
    const std::vector<fs::path> folders = case_folders(arguments);
    for (const fs::path& folder : folders) {
      for (const std::string& precision : precisions)
        collect(folder, parse_precision(precision), chains);
    }
    fmt::print("{} generated kernels of {} cases\n", chains.size(), folders.size());
    if (chains.empty()) throw Error(ErrorCode::kUsage, "no case there has a generated kernel");
    if (!source.empty()) write_source(source, chains);
    if (!architectures.empty()) compile(chains, architectures);
  } catch (const Error& error) {
    std::fprintf(stderr, "halfnote-collect-chains: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
