// tiny_model: writes a small model with random weights, of any family this library runs: to try a port, a
// loader or another engine without a download. The same options give the same bytes.
//
//   tiny_model --family step35 --type q4_k --seed 7 step35.gguf
//   tiny_model --family qwen35moe --split 3 moe.gguf     -> moe-00001-of-00003.gguf ..
//   tiny_model --family step35 --packaging mtp mtp-step35.gguf         goes with --packaging trunk, or --no-mtp
#include "../tests/tiny.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char kUsage[] =
    "usage: tiny_model [options] FILE\n"
    "  --family NAME      qwen35, qwen35moe, qwen3next, step35 (qwen35)\n"
    "  --type NAME        f32, f16, bf16, q8_0, q4_k, ... of the matrices (f16)\n"
    "  --scales NAME      of whole matrices, with --type nvfp4: none, separate, or applied and written as F32 (none)\n"
    "  --seed N           (1)\n"
    "  --layers N         trunk layers (4)\n"
    "  --scale X          of the logits; larger is more decided (1)\n"
    "  --no-mtp           without draft blocks\n"
    "  --fused            the older, fused tensors\n"
    "  --packaging NAME   whole, trunk, mtp, mtp-bare: without embedding and head (whole)\n"
    "  --split N          as N shards\n";

bool write(const std::string& path, const std::vector<std::byte>& bytes) {
    std::FILE* f = std::fopen(path.c_str(), "wb");
    const bool good = f && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
    if (f && std::fclose(f) != 0) return false;
    return good;
}

int complain(const std::string& text) {
    std::fprintf(stderr, "tiny_model: %s\n%s", text.c_str(), kUsage);
    return 2;
}

}  // namespace

int main(int n_arg, char** args) {
    using namespace auspex::detail;
    test::TinyOptions o;
    std::string path;
    uint32_t n_shard = 1;
    for (int i = 1; i < n_arg; ++i) {
        const std::string a = args[i];
        if (a == "--help") return std::fputs(kUsage, stdout) < 0;
        if (a == "--no-mtp") {
            o.mtp = false;
            continue;
        }
        if (a == "--fused") {
            o.fused = true;
            continue;
        }
        if (a.compare(0, 2, "--") != 0) {
            if (!path.empty()) return complain("more than one file: '" + path + "' and '" + a + "'");
            path = a;
            continue;
        }
        if (i + 1 == n_arg) return complain("'" + a + "' needs a value");
        const std::string v = args[++i];
        bool known = false;
        if (a == "--family") {
            for (test::Family f : test::kFamilies)
                if (v == test::family_name(f)) {
                    o.family = f;
                    known = true;
                }
        } else if (a == "--type") {
            std::string upper = v;
            for (char& c : upper) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
            for (uint32_t t = 0; t < 64; ++t) {
                const TypeInfo info = type_info(static_cast<Type>(t));
                if (info.name && upper == info.name && info.supported) {
                    o.type = static_cast<Type>(t);
                    known = true;
                }
            }
        } else if (a == "--scales") {
            const char* const names[] = {"none", "separate", "applied"};  // in the order of Scales
            for (int k = 0; k < 3; ++k)
                if (v == names[k]) o.scales = static_cast<test::TinyOptions::Scales>(k), known = true;
        } else if (a == "--packaging") {
            const char* const names[] = {"whole", "trunk", "mtp", "mtp-bare"};  // in the order of Packaging
            for (int k = 0; k < 4; ++k)
                if (v == names[k]) o.packaging = static_cast<test::Packaging>(k), known = true;
        } else if (a == "--scale") {
            o.scale = static_cast<float>(std::atof(v.c_str()));
            known = o.scale > 0;
        } else {
            char* end = nullptr;
            const unsigned long long n = std::strtoull(v.c_str(), &end, 10);
            known = *end == 0 && !v.empty();
            if (a == "--seed")
                o.seed = n;
            else if (a == "--layers" && n >= 1 && n <= 64)
                o.n_layer = static_cast<uint32_t>(n);
            else if (a == "--split" && n >= 1 && n <= 64)
                n_shard = static_cast<uint32_t>(n);
            else
                known = false;
        }
        if (!known) return complain("'" + a + " " + v + "' is not known");
    }
    if (path.empty()) return complain("no file given");
    if (o.packaging >= test::Packaging::mtp && !o.mtp) return complain("--packaging mtp and --no-mtp leave nothing");
    const std::vector<std::vector<std::byte>> files = test::tiny_shards(o, n_shard);
    const std::string stem =
        path.size() > 5 && path.compare(path.size() - 5, 5, ".gguf") == 0 ? path.substr(0, path.size() - 5) : path;
    for (uint32_t i = 0; i < n_shard; ++i) {
        char part[32];
        std::snprintf(part, sizeof part, "-%05u-of-%05u.gguf", i + 1, n_shard);
        const std::string name = n_shard > 1 ? stem + part : path;
        if (!write(name, files[i])) {
            std::fprintf(stderr, "tiny_model: '%s' cannot be written\n", name.c_str());
            return 1;
        }
        std::printf("%s %zu bytes\n", name.c_str(), files[i].size());
    }
    return 0;
}
