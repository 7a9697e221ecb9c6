// halfnote-bench-memory ARTIFACT NAME=DIM... : how well the arena of a training step is filled.
//
// Prints the least possible size (the most bytes that are needed at one time), the size of the
// plan, and that of each order of placing blocks, with the time it took. Then what is needed where
// most is: bytes, the step that writes it, and the last one that reads it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>

#include "base/error.h"
#include "compiler/onnx/import.h"
#include "runtime/core/memory/placement.h"
#include "runtime/core/profile/profiler.h"
#include "runtime/train/session.h"

namespace {

using namespace halfnote;
using Clock = std::chrono::steady_clock;

int64_t parse_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc() && end == text.data() + text.size() && number >= 1) return number;
  throw Error(ErrorCode::kUsage, "bad dim").expected("NAME=N", "\"" + std::string(text) + "\"");
}

/// Shapes of the inputs; a symbolic dim that is not given is a batch of 8.
std::vector<Shape> shapes_of(const Session& session, const std::map<std::string, int64_t>& dims) {
  constexpr int64_t kBatch = 8;
  std::vector<Shape> shapes;
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) {
      const auto found = dim.known() ? dims.end() : dims.find(dim.symbol);
      shape.push_back(dim.known() ? dim.value : found == dims.end() ? kBatch : found->second);
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

template <class Place>
void measure(std::string_view name, std::span<const ArenaBlock> blocks, Place&& place) {
  const Clock::time_point begin = Clock::now();
  const size_t bytes = place(blocks).bytes;
  const double ms = 1e3 * std::chrono::duration<double>(Clock::now() - begin).count();
  const size_t least = std::max<size_t>(live_peak(blocks), 1);
  std::cout << fmt::format(" {} {:.4f} ({:.0f} ms)", name,
                           static_cast<double>(bytes) / static_cast<double>(least), ms);
}

/// A value in the arena, from the step that writes it to the last that reads it; the last step that
/// it takes room in is the one before if that writes over it.
struct Resident {
  size_t bytes = 0;
  int first = 0, read = 0, last = 0;
};

size_t bytes_of(const StepOperand& operand) {
  return static_cast<size_t>(element_count(operand.shape)) * size_of(operand.dtype);
}

std::vector<Resident> residents_of(const Program& program) {
  constexpr auto kArena = BufferRef::Space::kArena;
  std::vector<Resident> all;
  std::map<size_t, size_t> at;  // offset -> the last value there
  for (int i = 0; i < static_cast<int>(program.steps.size()); ++i) {
    const ProgramStep& step = program.steps[static_cast<size_t>(i)];
    for (const BufferRef& ref : step.inputs) {
      if (ref.space != kArena || !at.contains(ref.offset)) continue;
      all[at[ref.offset]].read = all[at[ref.offset]].last = i;
    }
    if (step.workspace.space == kArena) all.push_back({step.kernel->workspace_bytes(), i, i, i});
    for (size_t k = 0; k < step.outputs.size(); ++k) {
      if (step.outputs[k].space != kArena || k >= step.output_types.size()) continue;
      const size_t offset = step.outputs[k].offset;
      if (at.contains(offset) && all[at[offset]].last == i) --all[at[offset]].last;
      at[offset] = all.size();
      all.push_back({bytes_of(step.output_types[k]), i, i, i});
    }
  }
  return all;
}

void show_peak(const Program& program) {
  const std::vector<Resident> all = residents_of(program);
  std::vector<size_t> live(program.steps.size() + 1);
  for (const Resident& value : all) {
    for (int i = value.first; i <= value.last; ++i) live[static_cast<size_t>(i)] += value.bytes;
  }
  const auto peak = static_cast<int>(std::ranges::max_element(live) - live.begin());
  const auto name = [&](int step) {
    const ProgramStep& s = program.steps[static_cast<size_t>(step)];
    return fmt::format("{} {} {}", step, s.op, s.node);
  };
  std::cout << fmt::format("  most at step {} of {}\n", name(peak), program.steps.size());
  std::vector<Resident> there;
  for (const Resident& value : all) {
    if (value.first <= peak && peak <= value.last && value.bytes > 0) there.push_back(value);
  }
  std::ranges::stable_sort(there, std::greater{}, &Resident::bytes);
  constexpr size_t kMost = 40;
  for (size_t i = 0; i < std::min(there.size(), kMost); ++i) {
    std::cout << fmt::format("  {:9.3f} MiB  {}  ->  {}\n", there[i].bytes / 0x1p20,
                             name(there[i].first), name(there[i].read));
  }
  if (there.size() > kMost) std::cout << fmt::format("  and {} more\n", there.size() - kMost);
}

void show(const std::string& artifact, const std::map<std::string, int64_t>& dims) {
  SessionOptions options;
  options.threads = 1;
  options.plan_only = true;
  options.dims = dims;
  Profiler profiler;  // so that steps remember types
  options.profiler = &profiler;
  Session session(import_model(artifact, {}), options);
  session.prepare(shapes_of(session, dims));
  const std::string& step = session.model().training.front().name;
  const Program& program = *session.program(step);
  const std::span<const ArenaBlock> blocks = program.arena_blocks;
  std::cout << fmt::format("{}: {} blocks, state {:.2f} MiB, least {:.2f} MiB, plan {:.2f} MiB;",
                           artifact, blocks.size(), session.memory().state / 0x1p20,
                           live_peak(blocks) / 0x1p20, program.arena_bytes / 0x1p20);
  for (const PlacementOrder order : kPlacementOrders) {
    measure(name_of(order), blocks, [&](const auto& all) { return place(all, order); });
  }
  measure("best", blocks, [](const auto& all) { return place_best(all); });
  std::cout << std::endl;
  show_peak(program);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: halfnote-bench-memory ARTIFACT [NAME=DIM]...\n";
    return static_cast<int>(ErrorCode::kUsage);
  }
  try {
    std::map<std::string, int64_t> dims;
    for (int i = 2; i < argc; ++i) {
      const std::string_view text = argv[i];
      const size_t at = std::min(text.find('='), text.size() - 1);
      dims[std::string(text.substr(0, at))] = parse_number(text.substr(at + 1));
    }
    show(argv[1], dims);
  } catch (const Error& error) {
    std::cerr << "halfnote-bench-memory: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
