// A kernel made of oneDNN primitives: everything is created at prepare time, `run` only rebinds
// pointers and executes.
//
// A row describes its call with a ProgramBuilder: operands (converted to the type the library
// computes in, if need be), changes of layout, primitives. Temporaries and scratchpads get places
// in the workspace of the plan.
#pragma once

#include <dnnl.hpp>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/reals.h"
#include "kernels/kernel.h"

namespace halfnote::cpu::onednn {

using Memory = dnnl::memory;

/// How a row computes: in the operands' own type, or in f32 from 16-bit operands that it converts.
enum class Path { kNative, kViaF32 };

/// The one engine of the process.
const dnnl::engine& engine();

/// f32 and bf16; others are a bug.
Memory::data_type data_type(DType dtype);
/// Row-major.
Memory::desc plain(const Shape& shape, DType dtype);
/// In the layout that the library likes best.
Memory::desc any_layout(const Shape& shape, DType dtype);
/// Default attributes, with scratchpads that we provide.
dnnl::primitive_attr attributes();

/// The reason why operands of type `dtype` are not for this path; else empty.
std::string path_refusal(Path path, DType dtype);
/// The type that the primitives read.
inline DType compute_type(Path path, DType dtype) {
  return path == Path::kViaF32 ? DType::kF32 : dtype;
}
/// The type that they write for an output of type `dtype`: bf16 only from bf16, else f32 (then
/// converted).
inline DType result_type(DType compute, DType dtype) {
  return compute == DType::kBF16 && dtype == DType::kBF16 ? dtype : DType::kF32;
}
/// The reason if a present operand has no elements, or is no float; else empty.
std::string operand_refusal(const KernelCall& call);

/// Sets the number of OpenMP threads for a scope: primitives are planned for a number of threads
/// and must run on it.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

/// Runs `prepare` under the call's number of threads; an error of the library becomes a refusal.
Prepared guarded(const KernelCall& call, const std::function<Prepared()>& prepare);

/// Is this one of the library's own plain loops? Ours are faster.
bool is_plain_loop(const dnnl::primitive_desc_base& descriptor);
/// Does it gather windows and multiply them, as no kernel of the library's own is for this call?
bool is_gemm(const dnnl::primitive_desc_base& descriptor);

class ProgramBuilder {
 public:
  using Arguments = std::unordered_map<int, Memory>;

  explicit ProgramBuilder(const KernelCall& call) : call_(call) {}

  /// Input `index`, seen as `desc`, whose type decides whether it is converted.
  Memory input(size_t index, const Memory::desc& desc);
  /// Output `index`, seen as `desc`; converted to the type of the operand at the end if the types
  /// differ.
  Memory output(size_t index, const Memory::desc& desc);
  /// Room in the workspace.
  Memory temporary(const Memory::desc& desc);
  /// `memory` in another layout: itself, or a reordered copy.
  Memory in_layout(const Memory& memory, const Memory::desc& wanted);
  /// A copy of `memory` that begins at `offsets` of a larger tensor, all else of which is 0.
  Memory padded(const Memory& memory, const Memory::desc& larger, const Memory::dims& offsets);
  /// Memory in layout `made` whose contents end up in `memory`.
  Memory out_layout(const Memory& memory, const Memory::desc& made);
  /// A step: `primitive` made from `descriptor`.
  void execute(const dnnl::primitive& primitive, const dnnl::primitive_desc_base& descriptor,
               Arguments arguments);
  /// A step of our own.
  void host(std::function<void(const KernelBuffers&)> step);
  /// The same, after all others but those that were asked for before it.
  void host_last(std::function<void(const KernelBuffers&)> step);

  Prepared finish();

 private:
  friend class ProgramKernel;
  enum class Where { kInput, kOutput, kWorkspace, kScratchpad };
  struct Binding {
    Memory memory;
    Where where = Where::kWorkspace;
    size_t index = 0;  // of the operand, or the offset in the workspace
  };
  struct Step {
    dnnl::primitive primitive;
    Arguments memories;  // keeps them alive
    std::vector<dnnl_exec_arg_t> arguments;
    std::function<void(const KernelBuffers&)> host;
  };

  Memory bind(const Memory::desc& desc, Where where, size_t index);
  Step reorder_step(const Memory& from, const Memory& to);
  Step primitive_step(const dnnl::primitive& primitive, const Memory::desc& scratchpad,
                      Arguments arguments);

  const KernelCall& call_;
  WorkspacePlan workspace_;
  size_t scratchpad_bytes_ = 0;
  std::vector<Binding> bindings_;
  std::vector<Step> steps_;
  std::vector<Step> last_steps_;  // in reverse order
};

}  // namespace halfnote::cpu::onednn
