#include "support.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace halfnote::test {
namespace fs = std::filesystem;

TempFolder::TempFolder() {
  // In memory where that is possible: these tests flush and rewrite thousands of files.
  std::error_code error;
  const bool memory = fs::is_directory("/dev/shm", error) && ::access("/dev/shm", W_OK) == 0;
  const fs::path parent = memory ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string pattern = (parent / "halfnote-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

void write_bytes(const fs::path& path, std::string_view bytes) {
  std::error_code error;
  fs::remove(path, error);  // some file systems flush a file that is cut and written again
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int status = deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("cannot compress");
  return result;
}

Error caught(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorCode::kInternal, "nothing");
}

void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& call) {
  const Error error = caught(call);
  EXPECT_EQ(kind_name(error.code()), kind_name(code)) << error.what();
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "no \"" << part << "\" in: " << error.what();
  }
}

namespace {

void expect_read_or_refused(const std::function<void()>& read, const std::string& what) {
  try {
    read();
  } catch (const Error& error) {
    const bool fits = error.code() == ErrorCode::kData || error.code() == ErrorCode::kIo ||
                      error.code() == ErrorCode::kMemory || error.code() == ErrorCode::kCheckpoint;
    EXPECT_TRUE(fits) << what << ": " << error.what();
    EXPECT_FALSE(error.place().file.empty()) << what << ": no file in: " << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << what << ": another exception: " << error.what();
  }
}

}  // namespace

void expect_robust(const std::string& path, const std::string& bytes, int mutations,
                   const std::function<void()>& read) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(path, std::string_view(bytes).substr(0, size));
    expect_read_or_refused(read, fmt::format("the first {} bytes", size));
  }
  Random random(1);
  for (int i = 0; i < mutations; ++i) {
    std::string damaged = bytes;
    for (uint64_t change = 0; change <= random.below(4); ++change) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    write_bytes(path, damaged);
    expect_read_or_refused(read, fmt::format("mutation {}", i));
  }
}

uint64_t Random::next() {
  // splitmix64
  uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Tensor random_tensor(DType dtype, Shape shape, uint64_t seed) {
  Tensor tensor(dtype, std::move(shape));
  Random random(seed);
  std::byte* bytes = tensor.mutable_bytes();
  for (size_t i = 0; i < tensor.byte_size(); ++i) {
    bytes[i] = static_cast<std::byte>(random.below(dtype == DType::kBool ? 2 : 256));
  }
  return tensor;
}

std::optional<std::string> run_judge(const std::string& script, const std::string& argument) {
  const char* cache = std::getenv("HALFNOTE_CACHE");
  const fs::path source(HALFNOTE_SOURCE_DIR);
  const fs::path python =
      (cache != nullptr ? fs::path(cache) : source / ".cache") / "venv/bin/python";
  if (!fs::exists(python)) return std::nullopt;
  const std::string command = fmt::format("'{}' '{}' '{}'", python.string(),
                                          (source / "tests/judges" / script).string(), argument);
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  std::string output;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, got);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return output;
}

}  // namespace halfnote::test
