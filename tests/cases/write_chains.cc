// Writes the generated kernels of tests/cuda/chain/table.cc as one source file for the emulation.
//
//   halfnote-write-chains FILE
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "tests/cuda/chain/table.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: halfnote-write-chains FILE\n", stderr);
    return 2;
  }
  try {
    const auto cases = halfnote::test::chain_cases();
    std::string text, list;
    for (const auto& [first, source] : halfnote::test::chain_texts(cases)) {
      text += "// " + first->title + "\n" + source.text + "\n";
      list += "    {\"" + source.name + "\", generated::" + source.name + "_parts::" + source.name +
              "},\n";
    }
    text += "#include \"tests/cuda/chain/compiled.h\"\n\n";
    text += "namespace halfnote::cuda_emulated {\n";
    text += "const CompiledChain kCompiledChains[] = {\n" + list + "};\n";
    text += "const size_t kCompiledChainCount = std::size(kCompiledChains);\n";
    text += "}  // namespace halfnote::cuda_emulated\n";
    halfnote::write_file_atomic(arguments[1], text);
  } catch (const halfnote::Error& error) {
    std::fprintf(stderr, "halfnote-write-chains: %s\n", error.what());
    return 1;
  }
  return 0;
}
