#include "model_file.h"

#include "engine/model.h"

namespace cli {

Status ModelFile::open(const std::string& named, const std::string& mtp_file) {
    Status s = find_model(named).get(path);
    if (!s.ok()) return s;
    auspex::LoadOptions options;
    options.mtp_file = mtp_file;
    s = auspex::detail::open_gguf(path.c_str(), &files, &gguf);
    if (s.ok()) s = auspex::detail::add_mtp_file(options, &files, &gguf);
    return s.ok() ? s : Status(s.code, "'" + path + "': " + s.text);
}

}  // namespace cli
