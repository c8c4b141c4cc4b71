// One of two versions of the library in one program: tools/test.sh compiles this file once with each header.
#include "auspex.hpp"

// PART is the name of the function.
std::string PART(const char* path);
std::string PART(const char* path) {
    auspex::DeviceOptions options;
    options.kind = auspex::Kind::cpu;
    auspex::Device device;
    auspex::Model model;
    auspex::Session session;
    auspex::Status s = auspex::Device::open(options).get(device);
    if (s.ok()) s = auspex::Model::load(device, path).get(model);
    if (s.ok()) s = auspex::Session::create(model).get(session);
    std::vector<auspex::Token> ids;
    if (s.ok()) s = model.encode("2026-03-14").get(ids);
    if (s.ok()) s = session.sync(ids).status();
    while (s.ok() && session.history().size() < ids.size() + 16) s = session.next().status();
    std::string text;
    if (s.ok()) s = model.decode(session.history()).get(text);
    return AUSPEX_VERSION "\n" + (s.ok() ? text : s.message());
}
