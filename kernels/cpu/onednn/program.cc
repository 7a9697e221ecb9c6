#include "kernels/cpu/onednn/program.h"

#include <omp.h>

#include <cstring>
#include <new>
#include <string_view>

#include "kernels/cpu/cpu_info.h"

namespace halfnote::cpu::onednn {

const dnnl::engine& engine() {
  static const dnnl::engine engine = [] {
    limit_onednn();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

Memory::data_type data_type(DType dtype) {
  if (dtype == DType::kF32) return Memory::data_type::f32;
  if (dtype == DType::kBF16) return Memory::data_type::bf16;
  throw Error(ErrorCode::kInternal, "oneDNN is asked for " + std::string(short_name(dtype)));
}

Memory::desc plain(const Shape& shape, DType dtype) {
  return {shape, data_type(dtype), strides_of(shape)};
}

Memory::desc any_layout(const Shape& shape, DType dtype) {
  return {shape, data_type(dtype), Memory::format_tag::any};
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

std::string path_refusal(Path path, DType dtype) {
  const bool native_bf16 = dtype == DType::kBF16 && cpu_has_native_bf16();
  if (path == Path::kViaF32) {
    if (native_bf16) return "this CPU computes in bf16 itself";
    if (is_16bit_float(dtype)) return {};
    return std::string(short_name(dtype)) + " is no 16-bit float";
  }
  if (dtype == DType::kF32 || native_bf16) return {};
  if (dtype == DType::kBF16 && bf16_dots() == Bf16Dots::kSlow)
    return "this CPU's bf16 dot products are slower than f32";
  if (dtype == DType::kBF16) return "no native bf16 on this CPU (" + onednn_isa_name() + ")";
  if (dtype == DType::kF16) return "oneDNN does not compute in f16 on this CPU";
  return "oneDNN does not compute in " + std::string(short_name(dtype));
}

std::string operand_refusal(const KernelCall& call) {
  const auto check = [](const std::vector<Operand>& operands) -> std::string {
    for (const Operand& operand : operands) {
      if (operand.present() && operand.size() == 0) return "a tensor without elements";
    }
    return {};
  };
  std::string why = check(call.inputs);
  if (why.empty()) why = check(call.outputs);
  if (why.empty() && call.has_output(0) && !is_real(call.outputs[0].dtype)) {
    return "output of type " + std::string(short_name(call.outputs[0].dtype));
  }
  return why;
}

ThreadScope::ThreadScope(int threads) : before_(omp_get_max_threads()) {
  if (threads != before_) omp_set_num_threads(std::max(1, threads));
}

ThreadScope::~ThreadScope() {
  if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
}

Prepared guarded(const KernelCall& call, const std::function<Prepared()>& prepare) {
  const ThreadScope scope(call.threads);
  try {
    return prepare();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    return Prepared::no(std::string("oneDNN: ") + error.message);
  }
}

bool is_plain_loop(const dnnl::primitive_desc_base& descriptor) {
  return std::string_view(descriptor.impl_info_str()).starts_with("ref");
}

bool is_gemm(const dnnl::primitive_desc_base& descriptor) {
  return std::string_view(descriptor.impl_info_str()).find("gemm:") != std::string_view::npos;
}

/// The library writes the code of its own product, some MB, when a convolution first needs it:
/// here, so that the prediction of a run's memory sees it.
void generate_library_products() {
  static const bool done = [] {
    constexpr dnnl_dim_t kSize = 32;
    const std::vector<float> ones(kSize * kSize, 1.0f);
    std::vector<float> product(kSize * kSize);
    dnnl::sgemm('N', 'N', kSize, kSize, kSize, 1.0f, ones.data(), kSize, ones.data(), kSize, 0.0f,
                product.data(), kSize);
    return true;
  }();
  static_cast<void>(done);
}

/// Rebinds the operands and runs the steps. `run` is const, but one thread at a time uses a kernel.
class ProgramKernel final : public Kernel {
 public:
  ProgramKernel(ProgramBuilder builder, int threads)
      : bindings_(std::move(builder.bindings_)),
        steps_(std::move(builder.steps_)),
        scratchpad_offset_(builder.workspace_.size()),
        workspace_(builder.workspace_.size() + builder.scratchpad_bytes_),
        threads_(threads),
        stream_(engine()) {
    for (auto step = builder.last_steps_.rbegin(); step != builder.last_steps_.rend(); ++step) {
      steps_.push_back(std::move(*step));
    }
  }

  size_t workspace_bytes() const override { return workspace_; }

  void run(const KernelBuffers& buffers) const override {
    const ThreadScope scope(threads_);
    for (const ProgramBuilder::Binding& binding : bindings_) {
      binding.memory.set_data_handle(address(binding, buffers));
    }
    for (const ProgramBuilder::Step& step : steps_) {
      if (step.host) {
        step.host(buffers);
        continue;
      }
      const dnnl_status_t status =
          dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                 static_cast<int>(step.arguments.size()), step.arguments.data());
      if (status == dnnl_out_of_memory) throw std::bad_alloc();
      if (status != dnnl_success) {
        throw Error(ErrorCode::kDevice, "a oneDNN primitive failed with status " +
                                            std::to_string(static_cast<int>(status)));
      }
    }
  }

 private:
  void* address(const ProgramBuilder::Binding& binding, const KernelBuffers& buffers) const {
    using Where = ProgramBuilder::Where;
    switch (binding.where) {
      // The library does not write to inputs; its interface just has no const.
      case Where::kInput:
        return const_cast<std::byte*>(buffers.inputs[binding.index]);
      case Where::kOutput:
        return buffers.outputs[binding.index];
      case Where::kWorkspace:
        return buffers.workspace + binding.index;
      case Where::kScratchpad:
        return buffers.workspace + scratchpad_offset_;
    }
    return nullptr;
  }

  std::vector<ProgramBuilder::Binding> bindings_;
  std::vector<ProgramBuilder::Step> steps_;
  size_t scratchpad_offset_, workspace_;
  int threads_;
  dnnl::stream stream_;
};

namespace {

/// Is an operand of type `dtype` used as it is? If not, it must be f32 that the library sees.
bool has_type(const Memory::desc& desc, DType dtype) {
  const bool is_f32 = desc.get_data_type() == Memory::data_type::f32;
  if (dtype == (is_f32 ? DType::kF32 : DType::kBF16)) return true;
  if (!is_f32) {
    throw Error(ErrorCode::kInternal,
                "no conversion from " + std::string(short_name(dtype)) + " to bf16");
  }
  return false;
}

}  // namespace

Memory ProgramBuilder::bind(const Memory::desc& desc, Where where, size_t index) {
  bindings_.push_back({Memory(desc, engine(), nullptr), where, index});
  return bindings_.back().memory;
}

Memory ProgramBuilder::temporary(const Memory::desc& desc) {
  return bind(desc, Where::kWorkspace, workspace_.add(desc.get_size()));
}

Memory ProgramBuilder::input(size_t index, const Memory::desc& desc) {
  const Operand& operand = call_.inputs[index];
  if (has_type(desc, operand.dtype)) return bind(desc, Where::kInput, index);
  const size_t offset = workspace_.add(desc.get_size());
  host([=, type = operand.dtype, size = operand.size(),
        threads = call_.threads](const KernelBuffers& buffers) {
    all_reals(buffers.inputs[index], type, size, part<float>(buffers, offset), threads);
  });
  return bind(desc, Where::kWorkspace, offset);
}

Memory ProgramBuilder::output(size_t index, const Memory::desc& desc) {
  const Operand& operand = call_.outputs[index];
  if (has_type(desc, operand.dtype)) return bind(desc, Where::kOutput, index);
  const size_t offset = workspace_.add(desc.get_size());
  host_last([=, type = operand.dtype, size = operand.size(),
             threads = call_.threads](const KernelBuffers& buffers) {
    const auto* from = part<float>(buffers, offset);
    parallel_blocks(size, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      store_reals(from + begin, end - begin, type, buffers.outputs[index], begin);
    });
  });
  return bind(desc, Where::kWorkspace, offset);
}

Memory ProgramBuilder::in_layout(const Memory& memory, const Memory::desc& wanted) {
  if (memory.get_desc() == wanted) return memory;
  const Memory copy = temporary(wanted);
  steps_.push_back(reorder_step(memory, copy));
  return copy;
}

Memory ProgramBuilder::padded(const Memory& memory, const Memory::desc& larger,
                              const Memory::dims& offsets) {
  const size_t bytes = larger.get_size(), offset = workspace_.add(bytes);
  host([=, threads = call_.threads](const KernelBuffers& buffers) {
    auto* to = part<std::byte>(buffers, offset);
    parallel_blocks(static_cast<int64_t>(bytes), kElementGrain, threads,
                    [&](int64_t begin, int64_t end) {
                      std::memset(to + begin, 0, static_cast<size_t>(end - begin));
                    });
  });
  const Memory::desc inner = larger.submemory_desc(memory.get_desc().get_dims(), offsets);
  steps_.push_back(reorder_step(memory, bind(inner, Where::kWorkspace, offset)));
  return bind(larger, Where::kWorkspace, offset);
}

Memory ProgramBuilder::out_layout(const Memory& memory, const Memory::desc& made) {
  if (memory.get_desc() == made) return memory;
  const Memory raw = temporary(made);
  last_steps_.push_back(reorder_step(raw, memory));
  return raw;
}

ProgramBuilder::Step ProgramBuilder::reorder_step(const Memory& from, const Memory& to) {
  const dnnl::reorder::primitive_desc descriptor(engine(), from.get_desc(), engine(), to.get_desc(),
                                                 attributes());
  return primitive_step(dnnl::reorder(descriptor), descriptor.scratchpad_desc(),
                        {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

ProgramBuilder::Step ProgramBuilder::primitive_step(const dnnl::primitive& primitive,
                                                    const Memory::desc& scratchpad,
                                                    Arguments arguments) {
  Step step;
  step.primitive = primitive;
  if (scratchpad.get_size() > 0) {
    scratchpad_bytes_ = std::max(scratchpad_bytes_, scratchpad.get_size());
    arguments.emplace(DNNL_ARG_SCRATCHPAD, bind(scratchpad, Where::kScratchpad, 0));
  }
  step.memories = std::move(arguments);
  for (const auto& [id, memory] : step.memories) step.arguments.push_back({id, memory.get()});
  return step;
}

void ProgramBuilder::execute(const dnnl::primitive& primitive,
                             const dnnl::primitive_desc_base& descriptor, Arguments arguments) {
  if (is_gemm(descriptor)) generate_library_products();
  steps_.push_back(primitive_step(primitive, descriptor.scratchpad_desc(), std::move(arguments)));
}

void ProgramBuilder::host(std::function<void(const KernelBuffers&)> step) {
  Step own;
  own.host = std::move(step);
  steps_.push_back(std::move(own));
}

void ProgramBuilder::host_last(std::function<void(const KernelBuffers&)> step) {
  Step own;
  own.host = std::move(step);
  last_steps_.push_back(std::move(own));
}

Prepared ProgramBuilder::finish() {
  const int threads = call_.threads;
  return Prepared::yes(std::make_unique<ProgramKernel>(std::move(*this), threads));
}

}  // namespace halfnote::cpu::onednn
