// cli/model_file: a GGUF file opened for reading about it, without loading its weights anywhere.
#pragma once
#include "base/file.h"
#include "base/gguf.h"
#include "common.h"

namespace cli {

struct ModelFile {
    std::string path;
    std::vector<auspex::detail::File> files;  ///< what `gguf` looks into
    auspex::detail::Gguf gguf;

    /// Opens the named file (or the demo model) and, of a split model, its other parts; and beside it a file with
    /// draft blocks, if one is named.
    Status open(const std::string& named, const std::string& mtp_file = {});
};

}  // namespace cli
