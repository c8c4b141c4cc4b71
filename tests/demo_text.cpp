// demo_text: prints what a model generates, greedily and sampled. tests/test_platforms.py compares the text of
// processors, instruction sets, operating systems and Vulkan devices: it is the same everywhere.
//
//   demo_text MODEL PATH   PATH: vulkan, or the CPU's: best, reference, avx2, avx512, neon. Exits with 77, and says
//                          why, where this machine has no such device.
#include <auspex.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>

#include <filesystem>
#endif

using namespace auspex;

namespace {

Status generate(const Model& model, const char* prompt, size_t n_token) {
    Session session;
    std::vector<Token> ids;
    Status s = Session::create(model).get(session);
    if (s.ok()) s = model.encode(prompt).get(ids);
    if (s.ok()) s = session.sync(ids).status();
    TextStream text(model);
    for (size_t n = 0; s.ok() && n < n_token;) {
        Span<const Token> tokens;
        s = session.next().get(tokens);
        for (size_t i = 0; i < tokens.size() && n < n_token; ++i, ++n)
            std::fputs(text.push(tokens[i]).value().c_str(), stdout);
    }
    std::puts(text.finish().value().c_str());
    return s;
}

int fail(const Status& s, int code = 1) {
    std::fprintf(stderr, "%s\n", s.message().c_str());
    return code;
}

int run(int argc, const char* const* argv) {
    static const char* const paths[] = {"best", "reference", "avx2", "avx512", "neon"};
    if (argc < 5) return fail(Status(Code::bad_argument, "expected MODEL PATH N_TOKEN PROMPT..."));
    DeviceOptions options;
    options.n_thread = 1;
    options.kind = std::strcmp(argv[2], "vulkan") == 0 ? Kind::vulkan : Kind::cpu;
    for (int i = 0; i < 5; ++i)
        if (std::strcmp(argv[2], paths[i]) == 0) options.cpu_path = static_cast<CpuPath>(i);
    Device device;
    Model model;
    Status s = Device::open(options).get(device);
    if (!s.ok()) return fail(s, s.code == Code::no_device || s.code == Code::unsupported ? 77 : 1);
    std::fprintf(stderr, "%s\n", device.name().c_str());
    s = Model::load(device, argv[1]).get(model);
    for (int i = 4; i < argc && s.ok(); ++i)
        s = generate(model, argv[i], static_cast<size_t>(std::strtoul(argv[3], nullptr, 10)));
    return s.ok() ? 0 : fail(s);
}

}  // namespace

#ifdef _WIN32
int wmain(int argc, wchar_t** wide) {
    _setmode(_fileno(stdout), _O_BINARY);
    std::vector<std::string> arguments;
    std::vector<const char*> pointers;
    for (int i = 0; i < argc; ++i) arguments.push_back(std::filesystem::path(wide[i]).u8string());
    for (const std::string& a : arguments) pointers.push_back(a.c_str());
    return run(argc, pointers.data());
}
#else
int main(int argc, char** argv) { return run(argc, argv); }
#endif
