// Compile: g++ -std=c++17 -O2 -DAUSPEX_NO_VULKAN -I single_include examples/minimal/main.cpp -pthread
#define AUSPEX_IMPLEMENTATION
#include <auspex.hpp>
#include <cstdio>

int main(int argc, char** argv) {
    const char* path = argc > 1 ? argv[1] : "examples/models/auspex-demo.gguf";
    auspex::Device device;
    auspex::Model model;
    auspex::Session session;
    auspex::SessionOptions options;
    options.draft.source = auspex::Draft::best;  // the same text, sooner
    auspex::Status s = auspex::Device::open().get(device);
    if (s.ok()) s = auspex::Model::load(device, path).get(model);
    if (s.ok()) s = auspex::Session::create(model, options).get(session);
    std::vector<auspex::Token> prompt;
    if (s.ok()) s = model.encode(argc > 2 ? argv[2] : "Once upon a time").get(prompt);
    if (s.ok()) s = session.sync(prompt).status();
    auspex::TextStream text(model);
    for (int i = 0; s.ok() && i < 64; ++i) {
        auspex::Span<const auspex::Token> tokens;
        s = session.next().get(tokens);
        for (auspex::Token id : tokens) std::fputs(text.push(id).value().c_str(), stdout);
    }
    std::puts(text.finish().value().c_str());
    if (!s.ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
    return s.ok() ? 0 : 1;
}
