#include "reference.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace test {

using auspex::detail::Json;

namespace {

Reference load(const std::string& base, const std::string& model_path) {
    Reference r;
    const std::string bytes = read_text(base + ".f32");
    auto json = Json::parse(read_text(base + ".json"));
    if (!json.ok() || bytes.empty()) return r;
    r.json = std::move(json.value());
    r.floats.resize(bytes.size() / sizeof(float));
    std::memcpy(r.floats.data(), bytes.data(), r.floats.size() * sizeof(float));
    r.model_path = model_path;
    r.ok = true;
    return r;
}

}  // namespace

Reference load_reference(const std::string& name) {
    const char* shared = shared_dir("reference");
    if (!shared) return {};
    return load(std::string(shared) + "/reference/" + name, std::string(shared) + "/models/" + name + ".gguf");
}

Reference load_small_reference() {
    return load(repo_dir() + "/tests/data/reference/demo", repo_dir() + "/examples/models/auspex-demo.gguf");
}

Reference::Array Reference::array(const std::string& name) const {
    Array a;
    const Json* arrays = json.find("arrays");
    const Json* entry = arrays ? arrays->find(name) : nullptr;
    if (!entry) return a;
    const std::vector<double> shape = numbers_of(*entry->find("shape"));
    a.data = floats.data() + std::strtoull(entry->find("offset_floats")->text().c_str(), nullptr, 10);
    a.n_row = static_cast<size_t>(shape[0]);
    a.n_col = static_cast<size_t>(shape[1]);
    return a;
}

std::vector<auspex::Token> ids_of(const Json& list) {
    std::vector<auspex::Token> ids;
    for (const Json& v : list.items()) ids.push_back(static_cast<auspex::Token>(std::atoi(v.text().c_str())));
    return ids;
}

std::vector<double> numbers_of(const Json& list) {
    std::vector<double> n;
    for (const Json& v : list.items()) n.push_back(std::atof(v.text().c_str()));
    return n;
}

double relative_error(const float* a, const float* b, size_t n) {
    double diff = 0, sum = 0;
    for (size_t i = 0; i < n; ++i) {
        diff += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
        sum += double{b[i]} * double{b[i]};
    }
    if (diff == 0) return 0;
    const double error = std::sqrt(diff / sum);
    return std::isnan(error) ? INFINITY : error;  // a NaN would get lost in the largest of several
}

size_t arg_max(const float* a, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; ++i)
        if (a[i] > a[best]) best = i;
    return best;
}

double margin(const float* a, size_t n) {
    const size_t best = arg_max(a, n);
    double second = -INFINITY;
    for (size_t i = 0; i < n; ++i)
        if (i != best) second = std::fmax(second, double{a[i]});
    return double{a[best]} - second;
}

}  // namespace test
