#include "model_file.h"

namespace cli {

using auspex::detail::File;
using auspex::detail::Gguf;

Status ModelFile::open(const std::string& named) {
    Status s = find_model(named).get(path);
    if (!s.ok()) return s;
    std::vector<std::string> paths = {path};
    std::vector<Gguf> shards;
    for (size_t i = 0; i < paths.size(); ++i) {
        File file;
        s = File::open(paths[i].c_str()).get(file);
        if (!s.ok()) return s;
        files.push_back(std::move(file));
        Gguf shard;
        s = Gguf::parse(files.back().bytes()).get(shard);
        if (!s.ok()) return Status(s.code, "'" + paths[i] + "': " + s.text);
        if (i == 0 && shard.find("split.count")) {
            uint32_t no = 0, count = 0;
            s = shard.get_u32("split.no").get(no);
            if (s.ok()) s = shard.get_u32("split.count").get(count);
            if (s.ok() && count > 1) s = auspex::detail::shard_paths(path, no, count).get(paths);
            if (!s.ok()) return s;
        }
        shards.push_back(std::move(shard));
    }
    if (shards.size() == 1) {
        gguf = std::move(shards[0]);
        return {};
    }
    return Gguf::join(std::move(shards)).get(gguf);
}

}  // namespace cli
