#include "tests/random/hostile.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "compiler/ir/text.h"
#include "kernels/device.h"
#include "kernels/kernel.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/passes.h"
#include "runtime/core/device_ready.h"
#include "runtime/train/session.h"
#include "tests/random/dice.h"

namespace halfnote::random {
namespace {

constexpr int64_t kMostElementsEach = int64_t{1} << 16;
constexpr size_t kMostWorkspace = size_t{64} << 20;
constexpr int kSeconds = 10;
constexpr int kTriesEach = 3;

// What runs now, for the handler of signals, which may not allocate.
char now[4096];

void tell(int signal) {
  const auto say = [](const char* text) {
    if (::write(STDOUT_FILENO, text, std::strlen(text)) < 0) ::_exit(2);
  };
  say(signal == SIGVTALRM ? "takes too long: " : "leaves its buffers: ");
  say(now);
  say("\n");
  ::_exit(1);
}

void watch() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGVTALRM}) ::signal(signal, tell);
}

/// Where buffers of devices begin: their kernels count on it.
constexpr size_t kDeviceAlignment = 64;

/// As many bytes as asked for, with a page behind them that nobody may touch; where they must begin
/// at an aligned place, right behind as many as that takes.
class Guarded {
 public:
  explicit Guarded(size_t bytes, size_t alignment = 1) {
    bytes = (bytes + alignment - 1) / alignment * alignment;
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t room = (bytes + page - 1) / page * page;
    mapped_ = room + 2 * page;
    void* memory =
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error(ErrorCode::kMemory, "no memory for a guarded buffer");
    base_ = static_cast<std::byte*>(memory);
    ::mprotect(base_, page, PROT_NONE);
    ::mprotect(base_ + page + room, page, PROT_NONE);
    data_ = base_ + page + room - bytes;
  }
  Guarded(Guarded&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), data_(other.data_), mapped_(other.mapped_) {}
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_ != nullptr) ::munmap(base_, mapped_);
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t mapped_ = 0;
};

class Attack {
 public:
  Attack(uint64_t seed, Counts& counts) : state_(mix(seed)), counts_(counts) {}

  const KernelTable& device_kernels() const { return device_->kernels(); }

  void on(const Graph& graph) {
    for (NodeId node : graph.nodes()) {
      for (int k = 0; k < kTriesEach && graph.subgraphs(node).empty(); ++k) on_node(graph, node);
    }
  }

 private:
  int pick(size_t limit) {
    return static_cast<int>((mix(state_++) >> 33) % std::max<uint64_t>(limit, 1));
  }

  template <class T, size_t N>
  T one_of(const T (&choices)[N]) {
    return choices[pick(N)];
  }

  Tensor numbers(DType dtype, const Shape& shape) {
    Tensor whole(DType::kI64, shape);
    for (int64_t& x : whole.mutable_data<int64_t>()) x = pick(12) - 3;
    if (!is_float(dtype)) return dtype == DType::kI64 ? whole : whole.cast_to(dtype);
    Tensor real = whole.cast_to(DType::kF64);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (double& x : real.mutable_data<double>()) {
      const double odd[] = {x + 0.5, kInfinity, -kInfinity, kInfinity - kInfinity, 1e30, -1e30};
      if (pick(8) == 0) x = odd[pick(std::size(odd))];
    }
    return dtype == DType::kF64 ? real : real.cast_to(dtype);
  }

  Shape changed(Shape shape) {
    static constexpr int64_t kExtents[] = {0, 1, 2, 3, 5, 8, 17, 64};
    const int way = pick(4);
    if (way == 0 && !shape.empty()) {
      shape.pop_back();
    } else if (way == 1 && shape.size() < 6) {
      shape.insert(shape.begin() + pick(shape.size() + 1), one_of(kExtents));
    } else if (!shape.empty()) {
      shape[static_cast<size_t>(pick(shape.size()))] = one_of(kExtents);
    }
    return shape;
  }

  DType other_type() {
    static constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kF16,  DType::kBF16,
                                       DType::kI64, DType::kI32, DType::kBool, DType::kU8};
    return one_of(kTypes);
  }

  int64_t other_number(int64_t x) {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
    const int64_t choices[] = {-x,    x + 1, x - 1,    2 * (x % 1000), 0,         1,    -1, 2,
                               1'000, -7,    kFar / 8, kFar,           -kFar - 1, 1024, 31, 63};
    return choices[pick(std::size(choices))];
  }

  void change(Attribute& attribute) {
    if (auto* number = std::get_if<int64_t>(&attribute)) *number = other_number(*number);
    if (auto* real = std::get_if<float>(&attribute)) *real = pick(2) == 0 ? 0.0f : -*real;
    if (auto* tensor = std::get_if<Tensor>(&attribute)) {
      if (tensor->dtype() != DType::kString)
        *tensor = numbers(tensor->dtype(), changed(tensor->shape()));
    }
    auto* list = std::get_if<std::vector<int64_t>>(&attribute);
    if (list == nullptr) return;
    if (list->empty() || pick(4) == 0) {
      list->push_back(pick(5));
    } else if (pick(4) == 0) {
      list->pop_back();
    } else {
      int64_t& number = (*list)[static_cast<size_t>(pick(list->size()))];
      number = other_number(number);
    }
  }

  /// A graph of just this node with something of it changed; inputs that were constant stay so.
  Graph lone(const Graph& graph, NodeId node, const std::vector<Tensor>& operands, bool* known) {
    Graph alone;
    const Node& source = graph.node(node);
    NodeSpec spec{source.op, {}, source.attributes, source.domain, "it"};
    for (size_t i = 0; i < operands.size(); ++i) {
      const Tensor& tensor = operands[i];
      const std::string name = "in" + std::to_string(i);
      known[i] = graph.input(node, i).valid() && graph.constant(graph.input(node, i)) != nullptr;
      if (!tensor.defined()) {
        spec.inputs.emplace_back();
      } else if (known[i]) {
        spec.inputs.push_back(alone.add_initializer(name, tensor));
      } else {
        const auto type = ValueType::tensor(tensor.dtype(), symbolic(tensor.shape()));
        spec.inputs.push_back(alone.add_input(alone.main(), name, type));
      }
    }
    std::vector<std::string> names;
    for (ValueId output : graph.outputs(node)) names.push_back(output.valid() ? "out" : "-");
    if (attribute_ >= 0) {
      Attributes attributes;
      int at = 0;
      for (const auto& [name, value] : source.attributes) {
        Attribute own = value;
        if (at++ == attribute_) change(own);
        attributes.set(name, std::move(own));
      }
      spec.attributes = std::move(attributes);
    }
    alone.create(std::move(spec), std::move(names), alone.end());
    return alone;
  }

  /// The node's operands with one of them changed; nothing where they cannot be had.
  std::vector<Tensor> operands_of(const Graph& graph, NodeId node) {
    const size_t count = graph.inputs(node).size(), settings = graph.node(node).attributes.size();
    const auto target = static_cast<size_t>(pick(2 * count + settings));
    attribute_ = target < 2 * count ? -1 : static_cast<int>(target - 2 * count);
    std::vector<Tensor> operands;
    for (size_t i = 0; i < count; ++i) {
      const ValueId id = graph.input(node, i);
      if (!id.valid()) {
        operands.emplace_back();
        continue;
      }
      const Value& value = graph.value(id);
      if (!value.type.has_concrete_shape() || value.type.dtype == DType::kString) return {};
      DType dtype = value.type.dtype;
      Shape shape = concrete(*value.type.shape);
      const Tensor* constant = graph.constant(id);
      if (target == 2 * i) shape = changed(shape);
      if (target == 2 * i + 1) dtype = other_type();
      const bool same = dtype == value.type.dtype && shape == concrete(*value.type.shape);
      if (element_count(shape) > kMostElementsEach) return {};
      operands.push_back(constant != nullptr && same ? *constant : numbers(dtype, shape));
    }
    return operands;
  }

  void on_node(const Graph& graph, NodeId node) {
    try {
      const std::vector<Tensor> operands = operands_of(graph, node);
      if (operands.size() != graph.inputs(node).size()) return;
      const auto known = std::make_unique<bool[]>(operands.size() + 1);
      Graph alone = lone(graph, node, operands, known.get());
      const NodeId copy = alone.first(alone.main());
      note(alone, operands, "infer");
      infer_node(alone, copy);
      check_nodes(alone, context_);
      run(alone, copy, operands, known.get());
    } catch (const Error& error) {
      ++counts_[fmt::format("hostile: refused as {}", kind_name(error.code()))];
    } catch (const std::bad_alloc&) {
      ++counts_["hostile: out of memory"];
    }
  }

  void note(const Graph& alone, const std::vector<Tensor>& operands, std::string_view kernel) {
    std::string text = fmt::format("{} of {}", kernel, print(alone));
    for (const Tensor& tensor : operands) {
      if (tensor.defined())
        text += fmt::format(" {}{}", short_name(tensor.dtype()), to_string(tensor.shape()));
    }
    const size_t length = std::min(text.size(), sizeof now - 1);
    std::memcpy(now, text.data(), length);
    now[length] = 0;
    const itimerval limit = {{0, 0}, {kSeconds, 0}};
    ::setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  }

  void run(const Graph& alone, NodeId node, const std::vector<Tensor>& operands,
           const bool* known) {
    const Node& data = alone.node(node);
    KernelCall call;
    call.domain = data.domain;
    call.op = data.op;
    call.attributes = &data.attributes;
    for (size_t i = 0; i < operands.size(); ++i) {
      const Tensor& tensor = operands[i];
      call.inputs.push_back(
          tensor.defined()
              ? Operand{tensor.dtype(), tensor.shape(), {}, known[i] ? &tensor : nullptr}
              : Operand{});
    }
    for (ValueId output : alone.outputs(node)) {
      if (!output.valid()) {
        call.outputs.emplace_back();
        continue;
      }
      const ValueType& type = alone.value(output).type;
      if (!type.has_concrete_shape() || type.dtype == DType::kString) return;
      call.outputs.push_back({type.dtype, concrete(*type.shape), {}, nullptr});
      if (call.outputs.back().size() > kMostElementsEach) return;
    }
    for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op))
      run_row(*row, call, alone, operands, nullptr);
    for (const KernelRow* row : device_->kernels().rows_of(call.domain, call.op))
      run_row(*row, call, alone, operands, device_->make_stream().get());
  }

  /// The stream is that of a device's kernel.
  void run_row(const KernelRow& row, const KernelCall& call, const Graph& alone,
               const std::vector<Tensor>& operands, Stream* stream) {
    const std::string where = stream == nullptr ? "" : " on a device";
    note(alone, operands, row.name);
    const Prepared prepared = row.prepare(call);
    ++counts_[(prepared ? "hostile: taken by a kernel" : "hostile: not taken by a kernel") + where];
    if (!prepared || prepared.kernel->workspace_bytes() > kMostWorkspace) return;
    try {
      run_kernel(*prepared.kernel, call, operands, stream);
      ++counts_["hostile: run" + where];
    } catch (const Error&) {
      ++counts_["hostile: refused while it ran" + where];
    }
  }

  void run_kernel(const Kernel& kernel, const KernelCall& call, const std::vector<Tensor>& operands,
                  Stream* stream) {
    const size_t alignment = stream == nullptr ? 1 : kDeviceAlignment;
    std::vector<Guarded> buffers;
    std::vector<const std::byte*> in;
    std::vector<std::byte*> out;
    for (const Tensor& tensor : operands) {
      if (!tensor.defined()) {
        in.push_back(nullptr);
        continue;
      }
      in.push_back(buffers.emplace_back(tensor.byte_size(), alignment).data());
      if (tensor.byte_size() > 0)
        std::memcpy(buffers.back().data(), tensor.bytes(), tensor.byte_size());
    }
    for (const Operand& output : call.outputs) {
      const size_t bytes = static_cast<size_t>(output.size()) * size_of(output.dtype);
      out.push_back(output.present() ? buffers.emplace_back(bytes, alignment).data() : nullptr);
    }
    const Guarded workspace(kernel.workspace_bytes(), 64), table(kernel.table_bytes(), 64);
    DeviceBuffers given;
    given.inputs = in;
    given.outputs = out;
    given.workspace = workspace.data();
    given.table = table.data();
    given.stream = stream;
    if (stream == nullptr) return kernel.run(given);
    kernel.write_table(given, table.data());
    kernel.run(given);
    stream->synchronise();
  }

  uint64_t state_;
  Counts& counts_;
  CompileOptions options_;
  std::vector<Remark> remarks_;
  PassContext context_{options_, infer_node, {}, remarks_, {}};
  int attribute_ = -1;  // the one that is changed
  std::unique_ptr<Device> device_ = open_device("cuda-emulated");
};

}  // namespace

void attack(const Problem& problem, uint64_t seed, Counts& counts) {
  watch();
  Attack attack(seed, counts);
  for (DType precision : {DType::kF32, DType::kBF16}) {
    try {
      const Model model = compile_model(problem.model, options_of(problem, precision, true)).model;
      const Graph& step = model.training.at(0).graph;
      attack.on(step);
      std::vector<Shape> shapes;
      for (const Tensor& input : inputs_of(problem, step)) shapes.push_back(input.shape());
      const auto dims = dims_from_shapes(step, shapes);
      attack.on(make_device_ready(step, dims));
      DeviceReadyOptions gpu;
      gpu.for_cpu = false;
      gpu.kernels = &attack.device_kernels();
      attack.on(make_device_ready(step, dims, gpu));
    } catch (const Error& error) {
      ++counts[fmt::format("hostile: no step ({})", kind_name(error.code()))];
    }
  }
  const itimerval none = {};
  ::setitimer(ITIMER_VIRTUAL, &none, nullptr);
}

}  // namespace halfnote::random
