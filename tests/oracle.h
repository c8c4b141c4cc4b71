// tests/oracle: the families as plain loops in double precision, straight from the formulas of
// docs/MODEL.md. Shares only the GGUF reader with the library, so an error common to both can
// only be in the formulas.
#pragma once
#include <map>

#include "../src/base/gguf.h"
#include "support.h"

namespace test {

struct OracleOptions {
    /// Keys and values rounded to half precision, as caches keep them.
    bool round_kv = true;
};

class Oracle {
  public:
    using Rows = std::vector<std::vector<double>>;
    /// The matrices must be F32 or F16. `bytes` must outlive the oracle.
    explicit Oracle(const std::vector<std::byte>& bytes, const OracleOptions& options = {});

    /// Logits of every row: of the trunk (depth 0), or of the draft block at a depth, fed with the true tokens. Row p
    /// predicts token p + 1 + depth.
    Rows logits(const std::vector<auspex::Token>& ids, uint32_t depth = 0);

  private:
    using Row = std::vector<double>;
    const std::vector<float>& weight(const std::string& name);
    bool has(const std::string& name) const { return file_.tensor(name) != nullptr; }
    double number(const std::string& key, double fallback) const;
    double number_at(const std::string& key, uint32_t i, double fallback) const;
    Row times(const std::string& name, const Row& x, size_t skip = 0);  ///< x W', W from matrix `skip` of a stack on
    Row norm(const Row& x, const std::string& name);
    Rows attention(uint32_t il, const Rows& a);
    Rows delta(uint32_t il, const Rows& a);
    Row ffn(uint32_t il, const Row& f);
    Row experts(uint32_t il, const Row& f);
    void block(uint32_t il, Rows& x, bool mtp);
    Row gated(const Row& gate, const Row& up, double limit) const;

    auspex::detail::Gguf file_;
    OracleOptions options_;
    std::string arch_;
    uint32_t n_layer_ = 0, n_mtp_ = 0, d_ = 0;
    double eps_ = 0;
    std::map<std::string, std::vector<float>> weights_;
};

}  // namespace test
